#include "device_memory/baseline/expandable_allocator.h"

namespace cachalot::device_memory {

Result<ExpandableAllocator::Range*> ExpandableAllocator::range_for(Key key) {
  const auto known = ranges_.find(key);
  if (known != ranges_.end()) return known->second.get();
  CACHALOT_TRY_ASSIGN(
      MappedRange memory,
      MappedRange::reserve(backend_, range_bytes_, ExpandableRange::handle_bytes(key.is_small)));
  auto range = std::make_unique<Range>(std::move(memory), key.stream, key.is_small);
  return (ranges_[key] = std::move(range)).get();
}

Result<TrackedAllocator::Placed> ExpandableAllocator::do_allocate(std::uint64_t bytes,
                                                                  gpu::StreamId stream) {
  CACHALOT_TRY_ASSIGN(Range* const range, range_for({stream, ExpandableRange::is_small(bytes)}));
  Block* block = range->blocks.find(bytes);
  if (block == nullptr) {
    ++stats_.driver_allocations;
    Result<Block*> grown = expand(*range, bytes);
    if (!grown && grown.error().code == Code::kNoSpace) {
      CACHALOT_TRY(do_release_cached());
      grown = expand(*range, bytes);
    }
    if (!grown) return grown.error();
    block = *grown;
  }
  Block* const used = range->blocks.take(block, bytes);
  return Placed{used->address, used};
}

Result<Block*> ExpandableAllocator::expand(Range& range, std::uint64_t bytes) {
  const std::uint64_t handles = range.blocks.missing_handles(bytes);
  CACHALOT_TRY(range.memory.grow(handles));
  return range.blocks.extend(handles);
}

void ExpandableAllocator::do_free(const Placed& placed) {
  ExpandableRange::free(static_cast<Block*>(placed.owner));
}

Status ExpandableAllocator::do_release_cached() {
  CACHALOT_TRY(synchronize());
  for (auto& [key, range] : ranges_) {
    range->blocks.release_free([&memory = range->memory](std::uint64_t first, std::uint64_t end) {
      memory.drop(first, end);
    });
  }
  return {};
}

std::uint64_t ExpandableAllocator::do_reserved_bytes() const {
  std::uint64_t bytes = 0;
  for (const auto& [key, range] : ranges_) bytes += range->memory.present_bytes();
  return bytes;
}

std::uint64_t ExpandableAllocator::do_used_bytes() const {
  std::uint64_t bytes = 0;
  for (const auto& [key, range] : ranges_) bytes += range->blocks.heap().used_bytes();
  return bytes;
}

Status ExpandableAllocator::do_check() const {
  for (const auto& [key, range] : ranges_) CACHALOT_TRY(range->blocks.heap().check());
  return {};
}

}  // namespace cachalot::device_memory
