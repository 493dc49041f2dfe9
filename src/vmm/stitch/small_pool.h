// Small requests, cut from slabs of one chunk each, so that they do not break up larger memory.
//
// 1. A slab is a used block of the primitive memory, one whole chunk; it belongs to one stream.
// 2. A slab that nothing is used of goes back when its stream's other slabs have room for half a chunk.
//
// @threads one at a time
#pragma once

#include "vmm/heap/block_heap.h"

namespace cachalot::vmm {

class SmallPool {
 public:
  explicit SmallPool(std::uint64_t chunk_bytes) : heap_(chunk_bytes) {}

  // Null: the stream needs another slab.
  Block* allocate(std::uint64_t bytes, Stream stream);
  void add_slab(Block* chunk, Stream stream);
  // @return a chunk that is not needed any more; null: none
  Block* free(Block* used);
  // A chunk that nothing is used of; null: there is none (left).
  Block* take_empty_slab();

  const BlockHeap& heap() const { return heap_; }

 private:
  Block* remove_slab(Segment* slab);

  BlockHeap heap_;
};

}  // namespace cachalot::vmm
