// Addresses that grow: a reservation whose beginning is mapped to memory of its own, by handles of
// one size that lie side by side.
//
// A call that fails has changed nothing. The memory is released when the range goes out of scope; a caller that
// holds maps of its handles elsewhere undoes them before.
//
// @threads one at a time
#pragma once

#include <cachalot/result.h>

#include <cstdint>
#include <utility>
#include <vector>

#include "device_memory/backend.h"

namespace cachalot::device_memory {

class MappedRange {
 public:
  // @param handle_bytes  a multiple of the backend's granularity
  static Result<MappedRange> reserve(Backend& backend, std::uint64_t range_bytes,
                                     std::uint64_t handle_bytes);
  MappedRange(MappedRange&& other) noexcept { swap(other); }
  MappedRange& operator=(MappedRange&& other) noexcept {
    swap(other);
    return *this;
  }
  ~MappedRange();

  Address base() const { return base_; }
  std::uint64_t range_bytes() const { return range_bytes_; }
  std::uint64_t handle_bytes() const { return handle_bytes_; }
  std::uint64_t mapped_bytes() const { return handles_.size() * handle_bytes_; }  // with holes
  std::uint64_t present_bytes() const { return present_ * handle_bytes_; }

  // `count` more handles behind the last one.
  // @errors kNoSpace: no memory, or the range is too small
  // @cost   three calls a handle but the access, which is set once
  Status grow(std::uint64_t count);

  // The handle mapped at base() + i * handle_bytes(); it has not been dropped.
  Handle handle(std::uint64_t i) const { return handles_[i]; }
  // Gives the memory of [first, end) back; their addresses stay empty.
  void drop(std::uint64_t first, std::uint64_t end);

 private:
  MappedRange() = default;
  Status create_and_map(std::uint64_t count);
  void swap(MappedRange& other);

  Backend* backend_ = nullptr;
  Address base_ = 0;
  std::uint64_t range_bytes_ = 0;
  std::uint64_t handle_bytes_ = 0;
  std::uint64_t present_ = 0;
  std::vector<Handle> handles_;  // without a value: dropped
};

}  // namespace cachalot::device_memory
