#include "device_memory/baseline/expandable_range.h"

#include "device_memory/baseline/caching_allocator.h"

namespace cachalot::device_memory {

bool ExpandableRange::is_small(std::uint64_t request_bytes) {
  return request_bytes <= kSmallRequestBytes;
}

ExpandableRange::ExpandableRange(Address base, gpu::StreamId stream, bool is_small)
    : heap_(kSmallSegmentBytes),
      segment_(heap_.add_segment(base, 0, stream, this)),
      stream_(stream),
      is_small_(is_small) {}

std::uint64_t ExpandableRange::handle_bytes(bool is_small) {
  return is_small ? kSmallSegmentBytes : kLargeSegmentBytes;
}

std::uint64_t ExpandableRange::missing_handles(std::uint64_t bytes) const {
  const Block* const last = segment_->last;
  const bool ends_free = last != nullptr && last->state == BlockState::kFree;
  const std::uint64_t missing = bytes - (ends_free ? last->bytes : 0);
  return (missing + handle_bytes() - 1) / handle_bytes();
}

Block* ExpandableRange::take(Block* free_block, std::uint64_t bytes) {
  const bool is_split = leaves_a_block(is_small_, free_block->bytes - bytes);
  return heap_.take(free_block, is_split ? bytes : free_block->bytes, nullptr);
}

}  // namespace cachalot::device_memory
