// A pool as a process has it: devices mapped, header checked, and from there a keeper or a client.
//
//   Result<Pool> pool = Pool::open({"/dev/shm/kv"});
//   Result<PoolClient> engine = pool->attach({.fingerprint = "llama-3-8b/bf16/…"});
//   engine->client().lookup(hashes, found);
//
// A pool of several devices is named by all their paths in order, or by the first one's alone if
// the others are called PATH.1, PATH.2, …
#pragma once

#include <cachalot/result.h>

#include <atomic>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "memory/devices.h"
#include "os/file_lock.h"
#include "pool/client/client.h"
#include "pool/format/access.h"
#include "pool/keeper/keeper.h"
#include "rpc/waiter.h"

namespace cachalot::pool {

// A keeper with what it needs to run in this process. @threads one
class PoolKeeper {
 public:
  Keeper& keeper() { return *keeper_; }
  // Serves, once it rules, until `stop` is set or a client asks for the end; backs off while there is nothing to do.
  // About once a second `check` is asked, if there is one, whether to go on.
  // @errors kStale: another keeper rules since; what `check` says
  Status run(const std::atomic<bool>& stop, const std::function<Status()>& check = {});
  // One round of that: serves what is there, or waits a while.
  void poll_or_wait();

 private:
  friend class Pool;
  PoolKeeper() = default;

  std::optional<os::FileLock> lock_;  // of its area, once it rules
  std::unique_ptr<base::SteadyClock> clock_;
  std::unique_ptr<Evidence> evidence_;
  std::unique_ptr<rpc::HostWaiter> waiter_;
  std::unique_ptr<Keeper> keeper_;
  Status check_now_and_then(const std::function<Status()>& check);

  std::uint32_t idle_ = 0;  // rounds in a row without a request
  std::uint32_t rounds_ = 0;
  std::uint64_t next_check_ns_ = 0;
};

class Renewer;

// A client with what it needs to run in this process, and a thread that renews it.
// @threads one at a time
class PoolClient {
 public:
  PoolClient(PoolClient&&) noexcept;
  PoolClient& operator=(PoolClient&&) noexcept;
  ~PoolClient();

  Client& client() { return *client_; }
  const Client& client() const { return *client_; }
  Client* operator->() { return client_.get(); }

  // As Client::detach(), and the slot is free at once, however long this object lives. Not where copies were
  // still in flight (kBusy), or may be for ever (kIo): then it is this client's until it is asked again or the object goes,
  // and if they still are by then, until the process ends.
  Status detach();

 private:
  friend class Pool;
  explicit PoolClient(os::FileLock lock);

  os::FileLock lock_;
  std::unique_ptr<base::SteadyClock> clock_;
  std::unique_ptr<rpc::HostWaiter> waiter_;
  std::unique_ptr<Client> client_;
  std::unique_ptr<Renewer> renewer_;  // goes first
};

class Pool {
 public:
  struct CreateOptions {
    std::vector<std::string> paths;  // one, or one per device
    Geometry geometry;               // device_bytes 0: as many as needed
    bool huge_pages = true;          // if they can be had
    bool populate = true;            // map all pages now, not at first touch
  };
  struct OpenOptions {
    bool huge_pages = true;
    bool populate = false;
    // Also a pool of another user than this one and root, or one that every user may write to.
    bool allow_foreign = false;
    // For programs that only look: attach() and serve() fail, and nothing is written.
    bool read_only = false;
  };

  // Makes the files with all their space, and an empty pool in them. On failure nothing is left.
  // @errors kInvalidArgument, kBusy: a file exists, kNoSpace, kPermission
  static Result<Pool> create(const CreateOptions& options);

  // Maps what is there.
  // @errors kNotFound; kPermission, also of a foreign pool; kBusy: its maker has not finished; kNotAPool, kVersionMismatch, kCorrupt; kInvalidArgument: the
  //         devices are not those of one pool, in its order
  static Result<Pool> open(const std::vector<std::string>& paths, const OpenOptions& options);
  static Result<Pool> open(const std::vector<std::string>& paths) { return open(paths, {}); }

  // Removes a pool's files, foreign ones too. @errors as open() and remove()
  static Status destroy(const std::vector<std::string>& paths);
  // Of this one, by their names. @errors kBusy: a keeper serves it; kStale: the names are of other files by now
  Status remove();

  // The names still belong to the files that are mapped: a pool without them cannot be found by anyone.
  // @errors kStale: they do not
  Status check_still_there() const;

  // Becomes the pool's keeper. `over` one that stalls, too: its process is not waited for, and does
  // no harm when it wakes up.
  // @errors kBusy: the pool has a keeper; kStale: another one took over before this one had finished;
  //         kTimeout: another process has held it for seconds
  enum class Succession { kOfTheDead, kOverTheLiving };
  Result<PoolKeeper> serve(KeeperOptions options, Succession succession = Succession::kOfTheDead);

  // The same in two steps: a keeper that has all its memory and waits, and its beginning, once. One that
  // was refused with kBusy may try again.
  Result<PoolKeeper> stand_by(KeeperOptions options);
  Status serve(PoolKeeper& standby, Succession succession = Succession::kOfTheDead);

  // Attaches as a client, in a free slot of the host's or in the one given. Its last slot is for
  // operators (ClientOptions::is_operator, which try it first), unless it is the only one or asked for
  // by number. A thread renews the client every `renew_interval_ns`, so that it is not suspected
  // while its engine computes.
  // @errors kBusy: the slot is taken or held, or all are; kNoKeeper; kTimeout
  Result<PoolClient> attach(ClientOptions options, std::optional<std::uint32_t> slot = {});

  const Access& access() const { return *access_; }
  const memory::DeviceSet& devices() const { return devices_; }
  std::uint64_t created_unix_s() const { return created_unix_s_; }
  std::vector<std::string> paths() const;

  // Another process has made the pool, and neither serves it yet nor has let go of it.
  bool is_kept_by_maker() const;

  // What the keeper and the clients last said of themselves.
  KeeperView keeper_view() const { return DirectoryReader(*access_).read_keepers(); }
  bool keeper_is_locked() const;
  bool read_keeper_line(KeeperLine& line) const;
  bool read_keeper_counters(KeeperCounters& counters) const;
  bool read_keeper_info(KeeperInfoLine& info) const;  // of the ruling keeper; false: it wrote none
  // What all clients have counted since the pool was made.
  ClientCounters read_totals() const;

 private:
  Pool(memory::DeviceSet devices, std::unique_ptr<memory::Domain> domain)
      : devices_(std::move(devices)), domain_(std::move(domain)) {}

  static Result<Pool> open_made(const std::vector<std::string>& paths, const OpenOptions& options);
  Error areas_in_use() const;
  Status finish_takeover(Keeper& keeper) const;
  Result<std::uint32_t> find_areas_in_use(Succession succession) const;
  Result<os::FileLock> lock_client_slot(std::uint32_t slot) const;
  Result<bool> find_keeper_lock() const;
  Status check_host(std::uint32_t host) const;
  Status check_slot(const ClientOptions& options, std::uint32_t slot) const;
  Result<PoolClient> attach_anywhere(ClientOptions options);
  Result<PoolClient> attach_at(const ClientOptions& options, std::uint32_t slot, os::FileLock lock);

  memory::DeviceSet devices_;
  std::unique_ptr<memory::Domain> domain_;
  std::unique_ptr<Access> access_;  // clients and keepers copy it
  std::uint64_t created_unix_s_ = 0;
  std::optional<os::FileLock> maker_lock_;  // of the process that made it, until it serves
};

// The paths of a pool's devices: `paths` itself, or PATH, PATH.1, … if it names only the first.
std::vector<std::string> device_paths(const std::vector<std::string>& paths, std::uint32_t devices);

}  // namespace cachalot::pool
