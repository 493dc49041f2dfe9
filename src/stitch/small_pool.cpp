#include "stitch/small_pool.h"

namespace cachalot::stitch {

device_memory::Block* SmallPool::allocate(std::uint64_t bytes, gpu::StreamId stream) {
  device_memory::Block* const block = heap_.best_fit(stream, bytes);
  return block == nullptr ? nullptr : heap_.take(block, bytes, nullptr);
}

void SmallPool::add_slab(device_memory::Block* chunk, gpu::StreamId stream) {
  heap_.add_segment(chunk->address, chunk->bytes, stream, chunk);
}

device_memory::Block* SmallPool::remove_slab(device_memory::Segment* slab) {
  auto* const chunk = static_cast<device_memory::Block*>(slab->owner);
  heap_.remove_segment(slab);
  return chunk;
}

device_memory::Block* SmallPool::free(device_memory::Block* used) {
  device_memory::Segment* const slab = heap_.free(used)->segment;
  if (slab->used_bytes != 0) return nullptr;
  const std::uint64_t elsewhere = heap_.pool(slab->first->stream).free_bytes - slab->bytes;
  return elsewhere >= slab->bytes / 2 ? remove_slab(slab) : nullptr;
}

device_memory::Block* SmallPool::take_empty_slab() {
  for (device_memory::Segment* slab : heap_.segments()) {
    if (slab->used_bytes == 0) return remove_slab(slab);
  }
  return nullptr;
}

}  // namespace cachalot::stitch
