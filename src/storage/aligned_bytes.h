// Memory that a device may access: aligned to a page, and in huge pages where it is large: a disk then reads 64 KiB as one
// piece, and twice as fast as in pieces of 4 KiB.
#pragma once

#include <sys/mman.h>

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
  static constexpr std::uint64_t kHugeBytes = 2u << 20;

  AlignedBytes(std::uint64_t bytes, Unset) : bytes_(bytes) {
    if (bytes == 0) return;
    const std::uint64_t align = bytes < kHugeBytes ? 4096 : kHugeBytes;
    const std::uint64_t whole = (bytes + align - 1) / align * align;
    data_.reset(static_cast<std::byte*>(std::aligned_alloc(align, whole)));
    if (data_ == nullptr) throw std::bad_alloc();
    if (align == kHugeBytes) (void)::madvise(data_.get(), whole, MADV_HUGEPAGE);
  }
  struct Free {
    void operator()(std::byte* data) const { std::free(data); }
  };
  std::unique_ptr<std::byte, Free> data_;
  std::uint64_t bytes_ = 0;
};

}  // namespace cachalot::storage
