// A model of PyTorch's caching allocator, to compare with: the same segments, splits and merges.
//
// 1. A request of at most 1 MiB is cut from segments of 2 MiB; one below 10 MiB from segments of 20 MiB;
//    a larger one gets a segment of its own, in multiples of 2 MiB.
// 2. The smallest free block that fits is used, of equals the one at the lowest address. Its rest stays
//    free on its own where it has at least 512 bytes (small requests) or more than 1 MiB (others).
// 3. Segments go back to the driver when a new one cannot be had, if nothing of them is used.
//
// @source PyTorch 2.x, c10/cuda/CUDACachingAllocator.cpp, with its default settings. Differs: of equal
//         blocks ours is the one at the lowest address of our backend, so that runs agree to about 0.5 %
#pragma once

#include <memory>

#include "device_memory/heap/block_heap.h"
#include "device_memory/mapped_range.h"
#include "device_memory/tracked_allocator.h"

namespace cachalot::device_memory {

// The sizes of PyTorch's pools.
inline constexpr std::uint64_t kSmallRequestBytes = std::uint64_t{1} << 20;
inline constexpr std::uint64_t kSmallSegmentBytes = std::uint64_t{2} << 20;
inline constexpr std::uint64_t kLargeRequestBytes = std::uint64_t{10} << 20;
inline constexpr std::uint64_t kLargeSegmentBytes = std::uint64_t{20} << 20;
inline constexpr std::uint64_t kSegmentRoundBytes = std::uint64_t{2} << 20;

// Whether what a request leaves of a block is worth a block of its own.
inline bool leaves_a_block(bool is_small, std::uint64_t rest_bytes) {
  return is_small ? rest_bytes >= TrackedAllocator::kRoundBytes : rest_bytes > kSmallRequestBytes;
}

class CachingAllocator final : public TrackedAllocator {
 public:
  CachingAllocator(Backend& backend, gpu::StreamEvents& events)
      : TrackedAllocator(backend, events) {}
  ~CachingAllocator() override;

  const char* name() const override { return "caching"; }

 private:
  Result<Placed> do_allocate(std::uint64_t bytes, gpu::StreamId stream) override;
  void do_free(const Placed& placed) override;
  Status do_release_cached() override;
  Status do_check() const override;
  std::uint64_t do_reserved_bytes() const override { return reserved_bytes_; }
  std::uint64_t do_used_bytes() const override { return small_.used_bytes() + large_.used_bytes(); }

  Result<Block*> add_segment(BlockHeap& heap, std::uint64_t bytes, gpu::StreamId stream);
  Status release_segments();

  BlockHeap small_{kSmallSegmentBytes};
  BlockHeap large_{kSmallSegmentBytes};
  std::uint64_t reserved_bytes_ = 0;
};

}  // namespace cachalot::device_memory
