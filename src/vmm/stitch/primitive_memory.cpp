#include "vmm/stitch/primitive_memory.h"

#include <algorithm>
#include <memory>

namespace cachalot::vmm {

namespace {
// Addresses cost nothing; a growing segment that has used them up is followed by another.
constexpr std::uint64_t kGrowingRangeBytes = std::uint64_t{64} << 30;
}  // namespace

struct PrimitiveMemory::Memory {
  MappedRange range;
};

PrimitiveMemory::~PrimitiveMemory() {
  for (const Segment* segment : heap_.segments()) delete static_cast<Memory*>(segment->owner);
}

Result<Segment*> PrimitiveMemory::add_segment(std::uint64_t range_bytes, std::uint64_t bytes,
                                              Stream stream) {
  CACHALOT_TRY_ASSIGN(MappedRange range, MappedRange::reserve(backend_, range_bytes, chunk_bytes_));
  CACHALOT_TRY(range.grow(bytes / chunk_bytes_));
  reserved_bytes_ += bytes;
  auto* const memory = new Memory{std::move(range)};
  return heap_.add_segment(memory->range.base(), bytes, stream, memory);
}

Result<Block*> PrimitiveMemory::create(std::uint64_t bytes, Stream stream) {
  const std::uint64_t rounded = round_up(bytes);
  CACHALOT_TRY_ASSIGN(const Segment* segment, add_segment(rounded, rounded, stream));
  return segment->first;
}

Result<Block*> PrimitiveMemory::append(std::uint64_t bytes, Stream stream) {
  const std::uint64_t more = round_up(bytes);
  Segment*& growing = growing_[stream];
  if (growing == nullptr || growing->bytes + more > kGrowingRangeBytes) {
    CACHALOT_TRY_ASSIGN(growing, add_segment(std::max(kGrowingRangeBytes, more), 0, stream));
  }
  CACHALOT_TRY(static_cast<Memory*>(growing->owner)->range.grow(more / chunk_bytes_));
  reserved_bytes_ += more;
  return heap_.extend(growing, more, stream);
}

std::uint64_t PrimitiveMemory::free_tail_bytes(Stream stream) const {
  const auto growing = growing_.find(stream);
  if (growing == growing_.end() || growing->second == nullptr) return 0;
  const Block* const last = growing->second->last;
  const bool is_ours =
      last != nullptr && last->state == BlockState::kFree && last->stream == stream;
  return is_ours ? last->bytes : 0;
}

Handle PrimitiveMemory::chunk(const Segment* segment, Address address) const {
  return static_cast<const Memory*>(segment->owner)
      ->range.handle((address - segment->base) / chunk_bytes_);
}

// Work on all of it is done: what two streams freed of one chunk may become one block.
void PrimitiveMemory::merge_streams(Segment* segment) {
  const auto is_free = [](const Block* block) {
    return block != nullptr && block->state == BlockState::kFree;
  };
  for (Block* block = segment->first; block != nullptr;) {
    block = is_free(block) && is_free(block->next) ? heap_.give(block->next, block->stream)
                                                   : block->next;
  }
}

void PrimitiveMemory::release_in(Segment* segment) {
  merge_streams(segment);
  MappedRange& range = static_cast<Memory*>(segment->owner)->range;
  for (Block* block = segment->first; block != nullptr; block = block->next) {
    if (block->state != BlockState::kFree) continue;
    const Address first = heap_.first_whole(block);
    const Address end = heap_.end_whole(block);
    if (first >= end) continue;
    range.drop((first - segment->base) / chunk_bytes_, (end - segment->base) / chunk_bytes_);
    reserved_bytes_ -= end - first;
    block = heap_.remove_memory(block, first, end - first);
  }
}

void PrimitiveMemory::release_free() {
  const std::vector<Segment*> segments = heap_.segments();
  for (Segment* segment : segments) {
    release_in(segment);
    if (segment->absent_bytes != segment->bytes) continue;
    std::erase_if(growing_, [&](const auto& each) { return each.second == segment; });
    delete static_cast<Memory*>(segment->owner);
    heap_.remove_segment(segment);
  }
}

}  // namespace cachalot::vmm
