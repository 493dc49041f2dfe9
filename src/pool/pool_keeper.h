// A keeper with what it needs to run in this process. Pool makes it.
#pragma once

#include <cachalot/result.h>

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>

#include "base/clock.h"
#include "os/file_lock.h"
#include "pool/format/evidence.h"
#include "pool/keeper/service/keeper.h"
#include "pool/keeper_areas.h"
#include "rpc/waiter.h"

namespace cachalot::pool {

// @threads one
class PoolKeeper {
 public:
  // Has all its memory and waits. @errors as Pool::stand_by
  static Result<PoolKeeper> prepare(const Access& access, KeeperOptions options);
  // Takes an area and announces itself in it. One that was refused may try again.
  // @errors kBusy: the pool has a keeper, or no area is free
  Status announce(const KeeperAreas& areas, Succession succession);
  // What follows the announcement: the keeper takes over, and serves.
  // @errors kStale: another keeper took over meanwhile; kTimeout: another process holds the succession lock
  Status take_over(const KeeperAreas& areas);

  Keeper& keeper() { return *keeper_; }
  // Serves until `stop` is set or a client asks for the end; backs off while there is nothing to do.
  // About once a second `check` is asked, if there is one, whether to go on.
  // @errors kStale: another keeper rules since; what `check` says
  Status run(const std::atomic<bool>& stop, const std::function<Status()>& check = {});
  // One round of that: serves what is there, or waits a while.
  void poll_or_wait();

 private:
  PoolKeeper() = default;

  Status finish_takeover(const KeeperAreas& areas);
  Status check_now_and_then(const std::function<Status()>& check);

  std::uint32_t host_ = 0;
  std::optional<os::FileLock> lock_;  // of its area, once it rules
  std::unique_ptr<base::SteadyClock> clock_;
  std::unique_ptr<Evidence> evidence_;
  std::unique_ptr<rpc::HostWaiter> waiter_;
  std::unique_ptr<Keeper> keeper_;
  std::uint32_t idle_ = 0;  // rounds in a row without a request
  std::uint32_t rounds_ = 0;
  std::uint64_t next_check_ns_ = 0;
};

}  // namespace cachalot::pool
