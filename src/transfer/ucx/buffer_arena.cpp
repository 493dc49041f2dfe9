#include "transfer/ucx/buffer_arena.h"

#include <cstdlib>

namespace cachalot::transfer {

void BufferArena::Free::operator()(std::byte* chunk) const {
  std::free(chunk);
}

std::byte* BufferArena::take() {
  if (free_.empty()) {
    auto* chunk = static_cast<std::byte*>(std::aligned_alloc(kChunkBytes, kChunkBytes));
    if (chunk == nullptr) return nullptr;
    chunks_.emplace_back(chunk);
    for (std::size_t at = kChunkBytes; at > 0; at -= buffer_bytes_)
      free_.push_back(chunk + at - buffer_bytes_);
  }
  std::byte* buffer = free_.back();
  free_.pop_back();
  return buffer;
}

}  // namespace cachalot::transfer
