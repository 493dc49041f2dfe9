#include "trace/allocation/alloc_trace_summary.h"

#include <algorithm>
#include <bit>

namespace cachalot::trace {

Status AllocTraceSummary::add(const AllocEvent& event) {
  switch (event.kind) {
    case AllocKind::kAllocate:
      return allocate(event);
    case AllocKind::kFree:
      ++frees_;
      live_bytes_ -= event.bytes;
      return {};
    case AllocKind::kMark:
      ++marks_;
      return {};
  }
  return {};
}

Status AllocTraceSummary::allocate(const AllocEvent& event) {
  std::uint64_t allocated = 0;
  if (__builtin_add_overflow(allocated_bytes_, event.bytes, &allocated)) {
    return Error::make(Code::kBadInput, "its allocations exceed 2^64 bytes");
  }
  allocated_bytes_ = allocated;
  ++allocations_;
  live_bytes_ += event.bytes;
  peak_live_bytes_ = std::max(peak_live_bytes_, live_bytes_);
  peak_live_blocks_ = std::max(peak_live_blocks_, live_blocks());
  largest_bytes_ = std::max(largest_bytes_, event.bytes);
  if (event.bytes >= kLargeBytes) large_bytes_ += event.bytes;
  streams_ = std::max(streams_, event.stream + 1);
  SizeClass& size_class = classes_[static_cast<std::size_t>(std::bit_width(event.bytes) - 1)];
  ++size_class.allocations;
  size_class.bytes += event.bytes;
  sizes_.find_or_add({event.bytes, 0});
  return {};
}

double AllocTraceSummary::large_share() const {
  return allocated_bytes_ == 0
             ? 0
             : static_cast<double>(large_bytes_) / static_cast<double>(allocated_bytes_);
}

}  // namespace cachalot::trace
