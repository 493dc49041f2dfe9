#include "stitch/primitive_memory.h"

#include <algorithm>
#include <memory>

namespace cachalot::stitch {

namespace {
// Addresses cost nothing; a growing segment that has used them up is followed by another.
constexpr std::uint64_t kGrowingRangeBytes = std::uint64_t{64} << 30;
}  // namespace

struct PrimitiveMemory::Memory {
  device_memory::MappedRange range;
};

PrimitiveMemory::~PrimitiveMemory() {
  for (const device_memory::Segment* segment : heap_.segments())
    delete static_cast<Memory*>(segment->owner);
}

Result<device_memory::Segment*> PrimitiveMemory::add_segment(std::uint64_t range_bytes,
                                                             std::uint64_t bytes,
                                                             gpu::StreamId stream) {
  CACHALOT_TRY_ASSIGN(device_memory::MappedRange range,
                      device_memory::MappedRange::reserve(backend_, range_bytes, chunk_bytes_));
  CACHALOT_TRY(range.grow(bytes / chunk_bytes_));
  reserved_bytes_ += bytes;
  auto* const memory = new Memory{std::move(range)};
  return heap_.add_segment(memory->range.base(), bytes, stream, memory);
}

Result<device_memory::Block*> PrimitiveMemory::create(std::uint64_t bytes, gpu::StreamId stream) {
  const std::uint64_t rounded = round_up(bytes);
  CACHALOT_TRY_ASSIGN(const device_memory::Segment* segment, add_segment(rounded, rounded, stream));
  return segment->first;
}

Result<device_memory::Block*> PrimitiveMemory::append(std::uint64_t bytes, gpu::StreamId stream) {
  const std::uint64_t more = round_up(bytes);
  device_memory::Segment*& growing = growing_[stream];
  if (growing == nullptr || growing->bytes + more > kGrowingRangeBytes) {
    CACHALOT_TRY_ASSIGN(growing, add_segment(std::max(kGrowingRangeBytes, more), 0, stream));
  }
  CACHALOT_TRY(static_cast<Memory*>(growing->owner)->range.grow(more / chunk_bytes_));
  reserved_bytes_ += more;
  return heap_.extend(growing, more, stream);
}

Result<device_memory::Block*> PrimitiveMemory::end_with(std::uint64_t bytes, gpu::StreamId stream) {
  const std::uint64_t tail_bytes = std::min(bytes, free_tail_bytes(stream));
  const device_memory::Segment* const growing = growing_[stream];
  if (tail_bytes == bytes) return growing->last;
  const bool has_room =
      growing != nullptr && growing->bytes + round_up(bytes - tail_bytes) <= kGrowingRangeBytes;
  return append(has_room ? bytes - tail_bytes : bytes, stream);
}

std::uint64_t PrimitiveMemory::free_tail_bytes(gpu::StreamId stream) const {
  const auto growing = growing_.find(stream);
  if (growing == growing_.end() || growing->second == nullptr) return 0;
  const device_memory::Block* const last = growing->second->last;
  const bool is_ours =
      last != nullptr && last->state == device_memory::BlockState::kFree && last->stream == stream;
  return is_ours ? last->bytes : 0;
}

device_memory::Handle PrimitiveMemory::chunk(const device_memory::Segment* segment,
                                             device_memory::Address address) const {
  return static_cast<const Memory*>(segment->owner)
      ->range.handle((address - segment->base) / chunk_bytes_);
}

// Work on all of it is done: what two streams freed of one chunk may become one block.
void PrimitiveMemory::merge_streams(device_memory::Segment* segment) {
  const auto is_free = [](const device_memory::Block* block) {
    return block != nullptr && block->state == device_memory::BlockState::kFree;
  };
  for (device_memory::Block* block = segment->first; block != nullptr;) {
    block = is_free(block) && is_free(block->next) ? heap_.give(block->next, block->stream)
                                                   : block->next;
  }
}

void PrimitiveMemory::release_in(device_memory::Segment* segment) {
  merge_streams(segment);
  device_memory::MappedRange& range = static_cast<Memory*>(segment->owner)->range;
  for (device_memory::Block* block = segment->first; block != nullptr; block = block->next) {
    if (block->state != device_memory::BlockState::kFree) continue;
    const device_memory::Address first = heap_.first_whole(block);
    const device_memory::Address end = heap_.end_whole(block);
    if (first >= end) continue;
    range.drop((first - segment->base) / chunk_bytes_, (end - segment->base) / chunk_bytes_);
    reserved_bytes_ -= end - first;
    block = heap_.remove_memory(block, first, end - first);
  }
}

void PrimitiveMemory::release_free() {
  const std::vector<device_memory::Segment*> segments = heap_.segments();
  for (device_memory::Segment* segment : segments) {
    release_in(segment);
    if (segment->absent_bytes != segment->bytes) continue;
    std::erase_if(growing_, [&](const auto& each) { return each.second == segment; });
    delete static_cast<Memory*>(segment->owner);
    heap_.remove_segment(segment);
  }
}

}  // namespace cachalot::stitch
