// Memory that a device may access: aligned to a page.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <new>

namespace cachalot::storage {

class AlignedBytes {
 public:
  AlignedBytes() = default;
  // Zeroed. @param bytes  a multiple of 4096
  explicit AlignedBytes(std::uint64_t bytes) : AlignedBytes(bytes, Unset{}) {
    if (bytes != 0) std::memset(data_.get(), 0, bytes);
  }
  static AlignedBytes unset(std::uint64_t bytes) { return {bytes, Unset{}}; }
  std::byte* data() { return data_.get(); }
  const std::byte* data() const { return data_.get(); }
  std::uint64_t size() const { return bytes_; }

 private:
  struct Unset {};
  AlignedBytes(std::uint64_t bytes, Unset)
      : data_(bytes == 0 ? nullptr : static_cast<std::byte*>(std::aligned_alloc(4096, bytes))),
        bytes_(bytes) {
    if (data_ == nullptr && bytes != 0) throw std::bad_alloc();
  }
  struct Free {
    void operator()(std::byte* data) const { std::free(data); }
  };
  std::unique_ptr<std::byte, Free> data_;
  std::uint64_t bytes_ = 0;
};

}  // namespace cachalot::storage
