// Physical memory in chunks, each with an address of its own for good: the primitive blocks that the
// stitching allocator hands out, splits, merges and stitches.
//
// 1. A chunk is mapped at its place in one segment from its creation until it is given back.
// 2. A segment is either one creation's (a primitive block, split and merged inside), or a stream's
//    growing one, which takes the new memory of all its medium requests.
//
// @threads one at a time
#pragma once

#include <cstdint>
#include <unordered_map>

#include "device_memory/heap/block_heap.h"
#include "device_memory/mapped_range.h"

namespace cachalot::stitch {

class PrimitiveMemory {
 public:
  PrimitiveMemory(device_memory::Backend& backend, std::uint64_t chunk_bytes)
      : backend_(backend),
        chunk_bytes_(chunk_bytes),
        heap_(chunk_bytes, device_memory::BlockHeap::Parts::kKnown) {}
  ~PrimitiveMemory();

  device_memory::BlockHeap& heap() { return heap_; }
  const device_memory::BlockHeap& heap() const { return heap_; }
  std::uint64_t chunk_bytes() const { return chunk_bytes_; }
  std::uint64_t reserved_bytes() const { return reserved_bytes_; }

  // A new primitive block of whole chunks, free. @errors kNoSpace: nothing changed
  Result<device_memory::Block*> create(std::uint64_t bytes, gpu::StreamId stream);
  // Whole chunks more at the end of the stream's growing segment, where they join what is free there.
  // @return the free block at its end. @errors kNoSpace: nothing changed
  Result<device_memory::Block*> append(std::uint64_t bytes, gpu::StreamId stream);
  // As much more that the stream's growing segment ends in at least `bytes` free bytes.
  // @return the free block at its end. @errors kNoSpace: nothing changed
  Result<device_memory::Block*> end_with(std::uint64_t bytes, gpu::StreamId stream);
  // The free bytes at the end of the stream's growing segment.
  std::uint64_t free_tail_bytes(gpu::StreamId stream) const;

  // The chunk that has this address; it is not absent.
  device_memory::Handle chunk(const device_memory::Segment* segment,
                              device_memory::Address address) const;

  // Gives the whole free chunks back; nothing else may map them, and no work may touch them.
  void release_free();

 private:
  struct Memory;
  Result<device_memory::Segment*> add_segment(std::uint64_t range_bytes, std::uint64_t bytes,
                                              gpu::StreamId stream);
  std::uint64_t round_up(std::uint64_t bytes) const {
    return (bytes + chunk_bytes_ - 1) / chunk_bytes_ * chunk_bytes_;
  }
  void merge_streams(device_memory::Segment* segment);
  void release_in(device_memory::Segment* segment);

  device_memory::Backend& backend_;
  std::uint64_t chunk_bytes_;
  device_memory::BlockHeap heap_;
  std::uint64_t reserved_bytes_ = 0;
  std::unordered_map<gpu::StreamId, device_memory::Segment*> growing_;
};

}  // namespace cachalot::stitch
