// The words of virtual memory: addresses of a device, names of physical memory, what may be done with it.
#pragma once

#include <cstdint>

namespace cachalot::device_memory {

// An address of the device. On memfd it is an address of this process.
using Address = std::uint64_t;

enum class Access : std::uint8_t { kNone, kRead, kReadWrite };

// Names physical memory of one create(); 0 names none. A name is never given twice.
struct Handle {
  std::uint64_t value = 0;
  explicit operator bool() const { return value != 0; }
  bool operator==(const Handle&) const = default;
};

// Public facts of a live handle.
struct HandleInfo {
  std::uint64_t bytes = 0;
  std::uint64_t mappings = 0;
};

// What a Handle stands for, as the backend that made it sees it: `native` is its own number for it,
// a place in a file or a driver's handle.
struct Memory {
  std::uint64_t native = 0;
  std::uint64_t bytes = 0;
  bool operator==(const Memory&) const = default;
};

// Mappings that lie side by side.
struct Span {
  Address at = 0;
  std::uint64_t bytes = 0;
  std::uint64_t mappings = 0;
};

}  // namespace cachalot::device_memory
