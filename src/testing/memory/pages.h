// Anonymous zeroed pages, or bare address space, that goes away with its owner.
#pragma once

#include <sys/mman.h>

#include <cstddef>

#include "base/check.h"

namespace cachalot::memory {

class Pages {
 public:
  // @param protection  PROT_NONE reserves addresses that fault on every access
  Pages(std::size_t bytes, int protection)
      : bytes_(bytes),
        data_(
            mmap(nullptr, bytes, protection, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0)) {
    CACHALOT_CHECK(data_ != MAP_FAILED);
  }
  ~Pages() {
    if (data_ != nullptr) munmap(data_, bytes_);
  }
  Pages(const Pages&) = delete;
  Pages& operator=(const Pages&) = delete;

  unsigned char* data() const { return static_cast<unsigned char*>(data_); }
  std::size_t bytes() const { return bytes_; }

  // Keeps the pages mapped for the life of the process.
  void release() { data_ = nullptr; }

 private:
  std::size_t bytes_;
  void* data_;
};

}  // namespace cachalot::memory
