// A keeper of this engine's own: `cachalot serve` as a child process, with a pool in anonymous memory and storage
// behind it.
//
// 1. The pool has no name in any file system: its memory is free when both processes have ended, however they end.
// 2. The child is killed with this process. What storage has reported as written is there afterwards.
#pragma once

#include <cachalot/result.h>

#include <cstdint>
#include <memory>
#include <string>

namespace cachalot::llama {

struct OwnKeeperOptions {
  std::string storage = {};           // as `cachalot serve --storage`
  std::string storage_capacity = {};  // empty: no limit
  std::uint64_t memory_bytes = 0;     // of all blocks of the pool
  std::uint64_t block_bytes = 0;
  std::uint64_t clients = 0;  // of this engine
};

class OwnKeeper {
 public:
  // Returns when the pool is served. Call it from a thread that stays: the child ends with it.
  // @errors kUnsupported: no program `cachalot`; kInvalidArgument: memory for too few blocks; what the program says
  static Result<OwnKeeper> start(const OwnKeeperOptions& options);
  OwnKeeper(OwnKeeper&&) noexcept;
  OwnKeeper& operator=(OwnKeeper&&) noexcept;
  // Lets the child end, at most some seconds.
  ~OwnKeeper();

  const std::string& pool() const;  // the path by which this process opens it

 private:
  struct Impl;
  explicit OwnKeeper(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace cachalot::llama
