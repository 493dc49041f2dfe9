// What a client is given at its attachment, and what its parts share for its whole life.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>

#include "base/clock.h"
#include "block_hash/block_hash.h"
#include "pool/client/call_time.h"
#include "pool/format/access.h"
#include "pool/format/statistics.h"
#include "rpc/waiter.h"

namespace cachalot::pool {

struct ClientOptions {
  std::string fingerprint = "default";  // of the namespace (see block_hash::make_namespace)
  std::optional<BlockHash> namespace_digest = {};  // instead of that of the fingerprint
  std::string name = {};   // of the namespace, for operators and logs; without secrets
  std::uint32_t host = 0;  // this machine's number, below the pool's number of hosts
  // Blocks to hold in advance; fewer where the pool is small (see GrantedBlocks::advance()).
  std::uint32_t grant_target = 64;
  // How long one call waits for the keeper, all its waits together.
  std::uint64_t timeout_ns = 5'000'000'000;
  // Verify reads against the writer's checksum. Default: in the noncoherent domain.
  std::optional<bool> verify_checksums;
  // Compute one for what is written. Default: as above.
  std::optional<bool> write_checksums;
  // How long a call may wait for the next keeper, if the keeper it had is gone; the call may take so much
  // longer then. 0: the call fails, and a later call finds the next keeper. A keeper that is just taking over
  // is waited for in any case, up to timeout_ns.
  std::uint64_t recovery_ns = 0;
  // The time, by the client's clock, by which the attachment must be complete, in addition to timeout_ns.
  std::uint64_t attach_by_ns = CallTime::kNever;
  bool pins = false;  // pin() will be used
  // Stores nothing. If the namespace does not exist, neither in the pool nor in the storage behind it, it is not made,
  // so that a mistyped name does not use one up for good. Every lookup is a miss then, also of blocks that other
  // clients store later.
  bool reads_only = false;
  // Opens no namespace: Client::choose_namespace() names the one of the next calls.
  bool chooses_namespaces = false;
  // Stops, fences, evicts: Pool::attach begins with the slot that is reserved for operators. Implies
  // reads_only.
  bool is_operator = false;
  std::uint64_t renew_interval_ns = 200'000'000;  // of PoolClient's thread; 0: it has none
  // The client's name in reports.
  std::uint32_t pid = 0;
  std::uint32_t pid_namespace = 0;
  std::uint32_t time_namespace = 0;
  std::uint64_t start_time = 0;
  std::uint64_t boot_id_low = 0, boot_id_high = 0;
  bool use_doorbells = true;
  // Adds to the published counters what the client's user counts itself, because it reads the pool without
  // this client. Called by any thread, until the client has detached.
  std::function<void(ClientCounters&)> add_counters;
  // Whether the process of the keeper in this area has ended, if this can be known (Pool can, on one
  // machine): the lines of a killed keeper still say that it serves.
  std::function<bool(std::uint32_t area)> keeper_has_ended;
};

// What the parts of a client share. Nothing in it changes.
struct ClientContext {
  const Access access;
  const std::uint32_t slot;
  const ClientOptions options;
  rpc::Waiter& waiter;
  base::Clock& clock;
  const rpc::Doorbell keeper_doorbell;
};

}  // namespace cachalot::pool
