// A keeper inside this process: for one engine that wants a pool of its own, for tests, and for hosts
// where a process apart is not wanted. `cachalot serve` is the same as a program.
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
  std::string pool = {};  // its path; made if it is not there
  // Of a pool that is made; one that is there must have them, where they are given.
  std::uint64_t block_bytes = 0;
  std::uint64_t capacity_blocks = 0;
  std::uint32_t clients = 0;  // 0: 16
  std::string domain = {};    // "coherent" (none is given) or "noncoherent"
  std::string policy = "lru";
};

class EmbeddedKeeper {
 public:
  // @errors kBusy: the pool has a keeper, or another process makes it for two seconds already; kNoSpace;
  //         kInvalidArgument; as opening a pool
  static Result<EmbeddedKeeper> start(const KeeperOptions& options);
  EmbeddedKeeper(EmbeddedKeeper&&) noexcept;
  EmbeddedKeeper& operator=(EmbeddedKeeper&&) noexcept;
  ~EmbeddedKeeper();

  // Ends it. The pool's files are removed if start() made them, and they are still the ones. Clients read on
  // until they unmap.
  // @errors kStale: another keeper had taken over, or somebody removed the pool's files; it has ended all the same
  Status stop();

 private:
  struct Impl;
  explicit EmbeddedKeeper(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace cachalot
