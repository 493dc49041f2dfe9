#include "device_memory/memfd/huge_pages.h"

#include <sys/mman.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>

#include "os/mapping.h"

// Younger than the headers of some systems we build on; older kernels answer EINVAL.
#ifndef MADV_COLLAPSE
#define MADV_COLLAPSE 25
#endif

namespace cachalot::device_memory {
namespace {

// A part of the file, mapped for a moment at a place where huge pages fit.
class Window {
 public:
  Window(int fd, std::uint64_t offset, std::uint64_t bytes) : bytes_(bytes + kHugePageBytes) {
    all_ = mmap(nullptr, bytes_, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (all_ == MAP_FAILED) return;
    const std::uint64_t beyond = reinterpret_cast<std::uintptr_t>(all_) % kHugePageBytes;
    auto* const aligned =
        static_cast<std::byte*>(all_) + (kHugePageBytes - beyond) % kHugePageBytes;
    if (mmap(aligned, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, fd,
             static_cast<off_t>(offset)) != MAP_FAILED) {
      data_ = aligned;
    }
  }
  Window(const Window&) = delete;
  Window& operator=(const Window&) = delete;
  ~Window() {
    if (all_ != MAP_FAILED) munmap(all_, bytes_);
  }
  // Null: not to be had.
  std::byte* data() const { return data_; }

 private:
  std::uint64_t bytes_;
  void* all_ = MAP_FAILED;
  std::byte* data_ = nullptr;
};

bool collapse_at(std::byte* data, std::uint64_t bytes) {
  if (madvise(data, bytes, MADV_COLLAPSE) == 0) return true;
  // The first try may have met pages that waited in some processor's batch.
  return madvise(data, bytes, MADV_COLLAPSE) == 0;
}

}  // namespace

bool collapse(int fd, std::uint64_t offset, std::uint64_t bytes) {
  constexpr std::uint64_t kPieceBytes = 32 * kHugePageBytes;  // between two, a signal gets its turn
  for (std::uint64_t at = 0; at < bytes; at += kPieceBytes) {
    const std::uint64_t piece_bytes = std::min(kPieceBytes, bytes - at);
    const Window window(fd, offset + at, piece_bytes);
    if (window.data() == nullptr || !collapse_at(window.data(), piece_bytes)) return false;
  }
  return true;
}

// Advice about no bytes: only the advice itself is checked.
bool kernel_collapses() {
  return madvise(nullptr, 0, MADV_COLLAPSE) == 0;
}

bool is_huge(int fd, std::uint64_t offset) {
  const Window window(fd, offset, kHugePageBytes);
  if (window.data() == nullptr) return false;
  *reinterpret_cast<volatile std::byte*>(window.data()) = std::byte{0};
  return os::huge_bytes_at(window.data()) >= kHugePageBytes;
}

}  // namespace cachalot::device_memory
