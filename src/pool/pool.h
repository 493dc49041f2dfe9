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

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "os/file_lock.h"
#include "pool/keeper_areas.h"
#include "pool/mapped_pool.h"
#include "pool/pool_client.h"
#include "pool/pool_keeper.h"
#include "pool/pool_state.h"

namespace cachalot::pool {

class Pool {
 public:
  // Makes the files with all their space, and an empty pool in them. On failure nothing is left.
  // @errors kInvalidArgument, kBusy: a file exists, kNoSpace, kPermission
  static Result<Pool> create(const CreateOptions& options);

  // Maps what is there.
  // @errors kNotFound; kPermission, also of a foreign pool; kBusy: its maker has not finished; kNotAPool,
  //         kVersionMismatch, kCorrupt; kInvalidArgument: the devices are not those of one pool, in its order
  static Result<Pool> open(const std::vector<std::string>& paths, const OpenOptions& options);
  static Result<Pool> open(const std::vector<std::string>& paths) { return open(paths, {}); }

  // Removes a pool's files, foreign ones too. @errors as open() and remove()
  static Status destroy(const std::vector<std::string>& paths);
  // Of this one, by their names, and of the devices that were added to it. @errors kBusy: a keeper serves it; kStale: the names are of other files by now
  Status remove();

  // Checks that the names still belong to the files that are mapped: no process finds a pool without them.
  // @errors kStale: they do not
  Status check_still_there() const { return mapped_.check_still_there(); }

  // Becomes the pool's keeper. With kOverTheLiving it also replaces a keeper that stalls: it does not wait
  // for that process, which does no harm when it wakes up.
  // @errors kBusy: the pool has a keeper; kStale: another one took over before this one had finished;
  //         kTimeout: another process has held the succession lock for seconds; kIo: a device that was added
  //         cannot be mapped here, and the options do not say to go without
  Result<PoolKeeper> serve(KeeperOptions options, Succession succession = Succession::kOfTheDead);

  // The same in two steps: a keeper that has all its memory and waits, then its beginning, once. After kBusy
  // the caller may try again.
  Result<PoolKeeper> stand_by(KeeperOptions options);
  Status serve(PoolKeeper& standby, Succession succession = Succession::kOfTheDead);

  // What serve() asks of the devices that were added. A standby knows before it takes over.
  // @errors kIo: one of them cannot be mapped here
  Status check_added_devices() const;

  // Attaches as a client, in the slot given or in a free one of the host. The host's last slot is for operators
  // (ClientOptions::is_operator), which try it first; other clients get it if it is the only one, or by its number.
  // A thread renews the client every `renew_interval_ns`, so that it is not suspected while its engine computes.
  // @errors kBusy: the slot is taken or held, or all are; kNoKeeper; kTimeout
  Result<PoolClient> attach(ClientOptions options, std::optional<std::uint32_t> slot = {});

  const Access& access() const { return mapped_.access(); }
  const memory::DeviceSet& devices() const { return mapped_.devices(); }
  // Of a growable pool, else null.
  MappedExpansions* expansions() const { return mapped_.expansions(); }
  std::uint64_t created_unix_s() const { return mapped_.created_unix_s(); }
  std::vector<std::string> paths() const;
  // What its keeper and clients say of themselves. Valid until this object is moved or destroyed.
  PoolState state() const { return {access(), mapped_.first_file()}; }

  // Another process has made the pool, still has it open and does not serve it yet.
  bool is_kept_by_maker() const;

 private:
  static Status check_not_served(const CreateOptions& options);
  explicit Pool(MappedPool mapped) : mapped_(std::move(mapped)) {}

  KeeperAreas keeper_areas() const { return {access(), mapped_.first_file()}; }
  Status complete(ClientOptions& options) const;

  MappedPool mapped_;
  std::optional<os::FileLock> maker_lock_;  // of the process that made it, until it serves
};

}  // namespace cachalot::pool
