// A keeper inside this process: for tests, and for an engine that needs its own pool without another process.
// `cachalot serve` runs the same keeper as a program.
//
//   Result<EmbeddedKeeper> keeper = EmbeddedKeeper::start({.pool = "/dev/shm/kv",
//                                                          .block_bytes = block, .capacity_blocks = 4096});
//
// @threads  one at a time
#pragma once

#include <cachalot/result.h>

#include <cstdint>
#include <memory>
#include <string>

namespace cachalot {

struct KeeperOptions {
  std::string pool = {};  // path; the pool is created if it does not exist
  // Of the new pool. If the pool exists, values that are given must be those of the pool, and its blocks at least as large.
  std::uint64_t block_bytes = 0;
  std::uint64_t capacity_blocks = 0;  // that may be published at a time, or
  std::uint64_t size_bytes = 0;       // what the pool takes in all: as many blocks as fit
  std::uint32_t clients = 0;          // 0: 64, or those of the existing pool
  std::string domain = {};            // "coherent" (default) or "noncoherent"
  std::string policy = "lru";
  bool allow_foreign_pool = false;  // as in ClientOptions, of a pool that is there
  bool keep_pool = false;           // stop() leaves the pool to the next keeper
  // Devices that were added to a pool that is there, and cannot be opened, are given up with their blocks.
  bool without_lost_devices = false;
};

class EmbeddedKeeper {
 public:
  // @errors kBusy: the pool has a keeper, or another process has not finished creating it within two
  //         seconds; kNoSpace; kInvalidArgument; kIo: a device that was added to the pool cannot be opened;
  //         those of opening a pool
  static Result<EmbeddedKeeper> start(const KeeperOptions& options);
  EmbeddedKeeper(EmbeddedKeeper&&) noexcept;
  EmbeddedKeeper& operator=(EmbeddedKeeper&&) noexcept;
  ~EmbeddedKeeper();

  // Stops the keeper. Removes the pool's files if start() created them and they were not replaced, except with
  // keep_pool. Clients can read until they unmap.
  // @errors kStale: another keeper had taken over, or the pool's files were removed; the keeper has stopped
  //         anyway
  Status stop();
  // False: another keeper has taken over, or the pool's files were removed. stop() is still needed.
  // @threads any
  bool is_serving() const;

 private:
  struct Impl;
  explicit EmbeddedKeeper(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace cachalot
