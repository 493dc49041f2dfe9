#include "device_memory/baseline/caching_allocator.h"

namespace cachalot::device_memory {
namespace {

std::uint64_t segment_bytes(std::uint64_t bytes) {
  if (bytes <= kSmallRequestBytes) return kSmallSegmentBytes;
  if (bytes < kLargeRequestBytes) return kLargeSegmentBytes;
  return (bytes + kSegmentRoundBytes - 1) / kSegmentRoundBytes * kSegmentRoundBytes;
}

struct SegmentMemory {
  MappedRange range;
  BlockHeap* heap;
};

SegmentMemory* memory_of(const Segment* segment) {
  return static_cast<SegmentMemory*>(segment->owner);
}

}  // namespace

CachingAllocator::~CachingAllocator() {
  for (BlockHeap* heap : {&small_, &large_}) {
    for (const Segment* segment : heap->segments()) delete memory_of(segment);
  }
}

Result<TrackedAllocator::Placed> CachingAllocator::do_allocate(std::uint64_t bytes,
                                                               gpu::StreamId stream) {
  const bool is_small = bytes <= kSmallRequestBytes;
  BlockHeap& heap = is_small ? small_ : large_;
  Block* block = heap.best_fit(stream, bytes);
  if (block == nullptr) {
    ++stats_.driver_allocations;
    CACHALOT_TRY_ASSIGN(block, add_segment(heap, segment_bytes(bytes), stream));
  }
  const bool is_split = leaves_a_block(is_small, block->bytes - bytes);
  Block* const used = heap.take(block, is_split ? bytes : block->bytes, nullptr);
  return Placed{used->address, used};
}

Result<Block*> CachingAllocator::add_segment(BlockHeap& heap, std::uint64_t bytes,
                                             gpu::StreamId stream) {
  const auto make = [&]() -> Result<MappedRange> {
    CACHALOT_TRY_ASSIGN(MappedRange range, MappedRange::reserve(backend_, bytes, bytes));
    CACHALOT_TRY(range.grow(1));
    return range;
  };
  Result<MappedRange> range = make();
  if (!range && range.error().code == Code::kNoSpace) {
    CACHALOT_TRY(release_segments());
    range = make();
  }
  if (!range) return range.error();
  reserved_bytes_ += bytes;
  auto* const memory = new SegmentMemory{*std::move(range), &heap};
  return heap.add_segment(memory->range.base(), bytes, stream, memory)->first;
}

Status CachingAllocator::release_segments() {
  CACHALOT_TRY(synchronize());
  for (BlockHeap* heap : {&small_, &large_}) {
    const std::vector<Segment*> segments = heap->segments();
    for (Segment* segment : segments) {
      if (segment->used_bytes != 0) continue;
      reserved_bytes_ -= segment->bytes;
      delete memory_of(segment);
      heap->remove_segment(segment);
    }
  }
  return {};
}

void CachingAllocator::do_free(const Placed& placed) {
  auto* const block = static_cast<Block*>(placed.owner);
  memory_of(block->segment)->heap->free(block);
}

Status CachingAllocator::do_release_cached() {
  return release_segments();
}

Status CachingAllocator::do_check() const {
  CACHALOT_TRY(small_.check());
  return large_.check();
}

}  // namespace cachalot::device_memory
