// Bytes as a file that only this process sees, and that ends with it.
#pragma once

#include <sys/mman.h>
#include <unistd.h>

#include <span>
#include <string>

#include "base/check.h"
#include "os/file_descriptor.h"

namespace cachalot::fuzz {

class MemoryFile {
 public:
  explicit MemoryFile(std::span<const char> bytes) : file_(::memfd_create("fuzz", MFD_CLOEXEC)) {
    CACHALOT_CHECK(::write(file_.get(), bytes.data(), bytes.size()) ==
                   static_cast<ssize_t>(bytes.size()));
  }
  // Each open() of it begins at the first byte.
  std::string path() const { return "/proc/self/fd/" + std::to_string(file_.get()); }

 private:
  os::FileDescriptor file_;
};

}  // namespace cachalot::fuzz
