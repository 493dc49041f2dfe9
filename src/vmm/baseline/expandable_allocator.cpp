#include "vmm/baseline/expandable_allocator.h"

#include "vmm/baseline/caching_allocator.h"

namespace cachalot::vmm {

Result<ExpandableAllocator::Range*> ExpandableAllocator::range_for(Key key) {
  const auto known = ranges_.find(key);
  if (known != ranges_.end()) return known->second.get();
  const std::uint64_t handle_bytes = key.is_small ? kSmallSegmentBytes : kLargeSegmentBytes;
  CACHALOT_TRY_ASSIGN(MappedRange memory,
                      MappedRange::reserve(backend_, range_bytes_, handle_bytes));
  auto range = std::make_unique<Range>(std::move(memory), kSmallSegmentBytes);
  range->segment = range->heap.add_segment(range->memory.base(), 0, key.stream, range.get());
  return (ranges_[key] = std::move(range)).get();
}

Result<TrackedAllocator::Placed> ExpandableAllocator::do_allocate(std::uint64_t bytes,
                                                                  Stream stream) {
  const bool is_small = bytes <= kSmallRequestBytes;
  CACHALOT_TRY_ASSIGN(Range* const range, range_for({stream, is_small}));
  Block* block = range->heap.best_fit(stream, bytes);
  if (block == nullptr) {
    ++stats_.driver_allocations;
    Result<Block*> grown = expand(*range, bytes, stream);
    if (!grown && grown.error().code == Code::kNoSpace) {
      CACHALOT_TRY(do_release_cached());
      grown = expand(*range, bytes, stream);
    }
    if (!grown) return grown.error();
    block = *grown;
  }
  const bool is_split = leaves_a_block(is_small, block->bytes - bytes);
  Block* const used = range->heap.take(block, is_split ? bytes : block->bytes, nullptr);
  return Placed{used->address, used};
}

Result<Block*> ExpandableAllocator::expand(Range& range, std::uint64_t bytes, Stream stream) {
  const Block* const last = range.segment->last;
  const bool ends_free = last != nullptr && last->state == BlockState::kFree;
  const std::uint64_t missing = bytes - (ends_free ? last->bytes : 0);
  const std::uint64_t handle_bytes = range.memory.handle_bytes();
  const std::uint64_t handles = (missing + handle_bytes - 1) / handle_bytes;
  CACHALOT_TRY(range.memory.grow(handles));
  return range.heap.extend(range.segment, handles * handle_bytes, stream);
}

void ExpandableAllocator::do_free(const Placed& placed) {
  auto* const block = static_cast<Block*>(placed.owner);
  static_cast<Range*>(block->segment->owner)->heap.free(block);
}

// The heap's units are smaller than the handles of large ranges: only whole handles go.
void ExpandableAllocator::release_from(Range& range) {
  const std::uint64_t handle_bytes = range.memory.handle_bytes();
  const Address base = range.memory.base();
  for (Block* block = range.segment->first; block != nullptr; block = block->next) {
    if (block->state != BlockState::kFree) continue;
    const std::uint64_t first = (block->address - base + handle_bytes - 1) / handle_bytes;
    const std::uint64_t end = (block->end() - base) / handle_bytes;
    if (first >= end) continue;
    range.memory.drop(first, end);
    block =
        range.heap.remove_memory(block, base + first * handle_bytes, (end - first) * handle_bytes);
  }
}

Status ExpandableAllocator::do_release_cached() {
  CACHALOT_TRY(synchronize());
  for (auto& [key, range] : ranges_) release_from(*range);
  return {};
}

std::uint64_t ExpandableAllocator::do_reserved_bytes() const {
  std::uint64_t bytes = 0;
  for (const auto& [key, range] : ranges_) bytes += range->memory.present_bytes();
  return bytes;
}

std::uint64_t ExpandableAllocator::do_used_bytes() const {
  std::uint64_t bytes = 0;
  for (const auto& [key, range] : ranges_) bytes += range->heap.used_bytes();
  return bytes;
}

Status ExpandableAllocator::do_check() const {
  for (const auto& [key, range] : ranges_) CACHALOT_TRY(range->heap.check());
  return {};
}

}  // namespace cachalot::vmm
