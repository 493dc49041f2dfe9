// Replaces operator new for the whole program by one that also counts; the library never does so.
#include "allocations.h"

#include <cstddef>
#include <cstdlib>
#include <new>

namespace cachalot::apps::bench {
namespace {

thread_local std::uint64_t count = 0;

}  // namespace

std::uint64_t allocations() {
  return count;
}

#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
void* allocate(std::size_t bytes, std::size_t alignment) {
  ++count;
  if (bytes == 0) bytes = 1;
  void* const memory =
      alignment <= alignof(std::max_align_t)
          ? std::malloc(bytes)
          : std::aligned_alloc(alignment, (bytes + alignment - 1) / alignment * alignment);
  if (memory == nullptr) throw std::bad_alloc();
  return memory;
}
#endif

}  // namespace cachalot::apps::bench

#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
// The other forms of new and delete lead here.
void* operator new(std::size_t bytes) {
  return cachalot::apps::bench::allocate(bytes, 1);
}
void* operator new(std::size_t bytes, std::align_val_t alignment) {
  return cachalot::apps::bench::allocate(bytes, static_cast<std::size_t>(alignment));
}
void operator delete(void* memory) noexcept {
  std::free(memory);
}
void operator delete(void* memory, std::size_t) noexcept {
  std::free(memory);
}
void operator delete(void* memory, std::align_val_t) noexcept {
  std::free(memory);
}
void operator delete(void* memory, std::size_t, std::align_val_t) noexcept {
  std::free(memory);
}
#endif
