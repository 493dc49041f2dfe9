#include "vmm/stitch/small_pool.h"

namespace cachalot::vmm {

Block* SmallPool::allocate(std::uint64_t bytes, Stream stream) {
  Block* const block = heap_.best_fit(stream, bytes);
  return block == nullptr ? nullptr : heap_.take(block, bytes, nullptr);
}

void SmallPool::add_slab(Block* chunk, Stream stream) {
  heap_.add_segment(chunk->address, chunk->bytes, stream, chunk);
}

Block* SmallPool::remove_slab(Segment* slab) {
  auto* const chunk = static_cast<Block*>(slab->owner);
  heap_.remove_segment(slab);
  return chunk;
}

Block* SmallPool::free(Block* used) {
  Segment* const slab = heap_.free(used)->segment;
  if (slab->used_bytes != 0) return nullptr;
  const std::uint64_t elsewhere = heap_.pool(slab->first->stream).free_bytes - slab->bytes;
  return elsewhere >= slab->bytes / 2 ? remove_slab(slab) : nullptr;
}

Block* SmallPool::take_empty_slab() {
  for (Segment* slab : heap_.segments()) {
    if (slab->used_bytes == 0) return remove_slab(slab);
  }
  return nullptr;
}

}  // namespace cachalot::vmm
