// A device that is not there: its memory is an allocation of its own, a launch a pair of loops over a
// grid of thread blocks and threads. What they run is the GPU's kernels themselves (kv/fused), on the
// CPU's memory: the plan's arithmetic, the splitting of work, the tails. What the host does before and
// after is the GPU's too (kv/fused/host_part.h).
//
// Not for the lossy domain: a device loads and stores pool memory directly.
// @threads  one call at a time
#pragma once

#include <memory>
#include <vector>

#include "kv/copy_engine.h"

namespace cachalot::kv {

// Memory that only the device's kernels touch, and copies from and to the host.
class EmulatedMemory {
 public:
  // @errors kNoSpace
  static Result<EmulatedMemory> make(std::uint64_t bytes);

  std::byte* at(std::uint64_t offset) const { return memory_.get() + offset; }
  std::uint64_t bytes() const { return bytes_; }

 private:
  struct Free {
    void operator()(std::byte* memory) const;
  };
  EmulatedMemory(std::byte* memory, std::uint64_t bytes) : memory_(memory), bytes_(bytes) {}

  std::unique_ptr<std::byte, Free> memory_;
  std::uint64_t bytes_;
};

struct Grid {
  std::uint32_t blocks = 4, threads = 64;
};

// Which of the GPU's kernels. Where something is not aligned to 16 bytes, threads copy.
enum class Kernel { kThreads, kBulk };

class EmulatedEngine final : public CopyEngine {
 public:
  // @param cache  in EmulatedMemory; cache, order and domain outlive the engine
  // @errors kInvalidArgument: an empty grid; kUnsupported: the lossy domain
  static Result<EmulatedEngine> make(const EngineCache& cache, const BlockOrder& order,
                                     memory::Domain& domain, const Grid& grid = {},
                                     Kernel kernel = Kernel::kThreads);

  Status gather(std::span<const BlockCopy> blocks, LayerRange layers = {}) override;
  Status scatter(std::span<const BlockCopy> blocks, LayerRange layers = {}) override;

  const EngineCache& cache() const override { return *cache_; }
  const BlockOrder& order() const override { return *order_; }

 private:
  EmulatedEngine(const EngineCache& cache, const BlockOrder& order, memory::Domain& domain,
                 const Grid& grid, Kernel kernel)
      : cache_(&cache), order_(&order), domain_(&domain), grid_(grid), kernel_(kernel) {}

  Status copy(std::span<const BlockCopy> blocks, LayerRange layers, Direction direction);

  const EngineCache* cache_;
  const BlockOrder* order_;
  memory::Domain* domain_;
  Grid grid_;
  Kernel kernel_;
};

}  // namespace cachalot::kv
