#include "device_memory/mapped_range.h"

#include <cinttypes>

#include "base/check.h"

namespace cachalot::device_memory {

Result<MappedRange> MappedRange::reserve(Backend& backend, std::uint64_t range_bytes,
                                         std::uint64_t handle_bytes) {
  MappedRange range;
  CACHALOT_TRY_ASSIGN(range.base_, backend.reserve(range_bytes));
  range.backend_ = &backend;
  range.range_bytes_ = range_bytes;
  range.handle_bytes_ = handle_bytes;
  return range;
}

void MappedRange::swap(MappedRange& other) {
  std::swap(backend_, other.backend_);
  std::swap(base_, other.base_);
  std::swap(range_bytes_, other.range_bytes_);
  std::swap(handle_bytes_, other.handle_bytes_);
  std::swap(present_, other.present_);
  std::swap(handles_, other.handles_);
}

MappedRange::~MappedRange() {
  if (backend_ == nullptr) return;
  drop(0, handles_.size());
  CACHALOT_CHECK(backend_->free_range(base_));
}

void MappedRange::drop(std::uint64_t first, std::uint64_t end) {
  for (std::uint64_t i = first; i < end;) {
    if (!handles_[i]) {
      ++i;
      continue;
    }
    // One unmap for what lies side by side.
    const std::uint64_t begin = i;
    while (i < end && handles_[i]) ++i;
    CACHALOT_CHECK(backend_->unmap(base_ + begin * handle_bytes_, (i - begin) * handle_bytes_));
    for (std::uint64_t k = begin; k < i; ++k) {
      CACHALOT_CHECK(backend_->release(handles_[k]));
      handles_[k] = Handle{};
    }
    present_ -= i - begin;
  }
}

Status MappedRange::create_and_map(std::uint64_t count) {
  for (std::uint64_t i = 0; i < count; ++i) {
    CACHALOT_TRY_ASSIGN(const Handle handle, backend_->create(handle_bytes_));
    const Status mapped = backend_->map(base_ + handles_.size() * handle_bytes_, handle);
    if (!mapped) {
      CACHALOT_CHECK(backend_->release(handle));
      return mapped;
    }
    handles_.push_back(handle);
    ++present_;
  }
  return {};
}

Status MappedRange::grow(std::uint64_t count) {
  const std::uint64_t before = handles_.size();
  std::uint64_t bytes = 0;
  if (__builtin_mul_overflow(count, handle_bytes_, &bytes) ||
      bytes > range_bytes_ - mapped_bytes()) {
    return Error::make(Code::kNoSpace,
                       "range 0x%" PRIx64 ": %" PRIu64 " more handles of %" PRIu64
                       " bytes, expected at most %" PRIu64 " bytes more",
                       base_, count, handle_bytes_, range_bytes_ - mapped_bytes());
  }
  Status done = create_and_map(count);
  if (done && count != 0) {
    done = backend_->set_access(base_ + before * handle_bytes_, bytes, Access::kReadWrite);
  }
  if (!done) {
    drop(before, handles_.size());
    handles_.resize(before);
  }
  return done;
}

}  // namespace cachalot::device_memory
