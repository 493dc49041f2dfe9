// The bookkeeping of one expandable segment: which block a request gets, and when the range has to grow.
// It holds no memory, so it also tells what expandable segments would hold for another allocator's requests.
//
// @threads one at a time
// @cost    as BlockHeap
// @source  PyTorch 2.x, c10/cuda/CUDACachingAllocator.cpp, expandable_segments:True
#pragma once

#include <cstdint>
#include <vector>

#include "device_memory/heap/block_heap.h"

namespace cachalot::device_memory {

class ExpandableRange {
 public:
  // PyTorch has a range for small requests and one for the others, of each stream.
  static bool is_small(std::uint64_t request_bytes);
  // What a range grows by.
  static std::uint64_t handle_bytes(bool is_small);

  ExpandableRange(Address base, gpu::StreamId stream, bool is_small);

  std::uint64_t handle_bytes() const { return handle_bytes(is_small_); }
  // The free block that the request would be cut from; null: the range has to grow.
  Block* find(std::uint64_t bytes) { return heap_.best_fit(stream_, bytes); }
  // Handles that are missing at the range's end for the request.
  std::uint64_t missing_handles(std::uint64_t bytes) const;
  // They are there now. @return the free block that ends the range
  Block* extend(std::uint64_t handles) {
    return heap_.extend(segment_, handles * handle_bytes(), stream_);
  }
  // @return the used block; larger than the request where the rest is not worth a block
  Block* take(Block* free_block, std::uint64_t bytes);
  // Frees what take() of any range returned.
  static void free(Block* used) {
    static_cast<ExpandableRange*>(used->segment->owner)->heap_.free(used);
  }
  // Every whole free handle goes: drop(first, end) for each run of them, counted from the range's base.
  // Their addresses are not used again.
  template <typename Drop>
  void release_free(Drop drop);

  const BlockHeap& heap() const { return heap_; }

 private:
  // use(free_block, address, bytes) for each run of whole free handles. It returns the block that is there then.
  template <typename Use>
  void for_each_free_run(Use use);

  BlockHeap heap_;
  Segment* segment_;
  gpu::StreamId stream_;
  bool is_small_;
};

template <typename Use>
void ExpandableRange::for_each_free_run(Use use) {
  // The heap's units are smaller than the handles of large ranges.
  const std::uint64_t bytes = handle_bytes();
  const Address base = segment_->base;
  for (Block* block = segment_->first; block != nullptr; block = block->next) {
    if (block->state != BlockState::kFree) continue;
    const std::uint64_t first = (block->address - base + bytes - 1) / bytes;
    const std::uint64_t end = (block->end() - base) / bytes;
    if (first < end) block = use(block, base + first * bytes, (end - first) * bytes);
  }
}

template <typename Drop>
void ExpandableRange::release_free(Drop drop) {
  for_each_free_run([&](Block* block, Address address, std::uint64_t bytes) {
    const std::uint64_t first = (address - segment_->base) / handle_bytes();
    drop(first, first + bytes / handle_bytes());
    return heap_.remove_memory(block, address, bytes);
  });
}

}  // namespace cachalot::device_memory
