// Small requests, cut from slabs of one chunk each, so that they do not break up larger memory.
//
// 1. A slab is a used block of the primitive memory, one whole chunk; it belongs to one stream.
// 2. A slab that nothing is used of goes back when its stream's other slabs have room for half a chunk.
//
// @threads one at a time
#pragma once

#include "device_memory/heap/block_heap.h"

namespace cachalot::stitch {

class SmallPool {
 public:
  explicit SmallPool(std::uint64_t chunk_bytes) : heap_(chunk_bytes) {}

  // Null: the stream needs another slab.
  device_memory::Block* allocate(std::uint64_t bytes, gpu::StreamId stream);
  void add_slab(device_memory::Block* chunk, gpu::StreamId stream);
  // @return a chunk that is not needed any more; null: none
  device_memory::Block* free(device_memory::Block* used);
  // A chunk that nothing is used of; null: there is none (left).
  device_memory::Block* take_empty_slab();

  const device_memory::BlockHeap& heap() const { return heap_; }

 private:
  device_memory::Block* remove_slab(device_memory::Segment* slab);

  device_memory::BlockHeap heap_;
};

}  // namespace cachalot::stitch
