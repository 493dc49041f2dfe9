// What a captured CUDA graph uses must stay its own until the graph is gone: its replays read and write the
// addresses that the capture saw, whatever was freed since.
//
// PyTorch says when allocations for a graph begin and end, and when the graph has gone. What is allocated
// in between is noted, by whichever thread, and when it is freed it is kept back until the release.
// That costs memory (nothing that a capture frees is used again, not even by the capture) and no thought.
//
// 1. A noted allocation belongs to all pools that were open then, and is kept until the last of them is
//    released.
// 2. A pool is released when it was released as often as it was begun: graphs share pools.
//
// @threads any
// @cost    nothing but a load while there is no pool
#pragma once

#include <cachalot/result.h>

#include <atomic>
#include <compare>
#include <cstdint>
#include <map>
#include <mutex>
#include <unordered_map>
#include <vector>

#include "device_memory/types.h"

namespace cachalot::torch {

// PyTorch's name of a pool: two numbers.
struct PoolId {
  std::uint64_t first = 0, second = 0;
  auto operator<=>(const PoolId&) const = default;
};

class GraphPools {
 public:
  void begin(PoolId id);
  void end(PoolId id);
  // Whether one was begun and not ended: then a stream may be captured.
  bool has_open();
  // @return what was freed and kept back for it, to be freed now
  std::vector<device_memory::Address> release(PoolId id);

  void note(device_memory::Address address);
  // At free(): whether it has to be kept back. The pool has it then.
  // @errors kInvalidArgument: it was freed before, and is kept back since
  Result<bool> keep(device_memory::Address address);

 private:
  struct Pool {
    int begun = 0;  // and not released
    int open = 0;   // and not ended
  };
  struct Noted {
    std::vector<PoolId> pools;
    bool is_freed = false;
  };

  std::atomic<bool> has_pools_ = false;  // a hint for threads that have to do with none of them
  std::mutex mutex_;                     // of all below
  std::map<PoolId, Pool> pools_;
  std::unordered_map<device_memory::Address, Noted> noted_;
};

}  // namespace cachalot::torch
