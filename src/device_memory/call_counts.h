// How many calls went to a driver, by kind. On a GPU a call costs 1 to 200 us, so this is what an
// allocator's work is measured in.
#pragma once

#include <cstdint>

namespace cachalot::device_memory {

struct CallCounts {
  std::uint64_t reserve = 0;
  std::uint64_t free_range = 0;
  std::uint64_t create = 0;
  std::uint64_t release = 0;
  std::uint64_t map = 0;
  std::uint64_t set_access = 0;
  std::uint64_t unmap = 0;

  std::uint64_t total() const {
    return reserve + free_range + create + release + map + set_access + unmap;
  }
  bool operator==(const CallCounts&) const = default;
};

// The calls between two moments.
inline CallCounts operator-(const CallCounts& later, const CallCounts& earlier) {
  return {.reserve = later.reserve - earlier.reserve,
          .free_range = later.free_range - earlier.free_range,
          .create = later.create - earlier.create,
          .release = later.release - earlier.release,
          .map = later.map - earlier.map,
          .set_access = later.set_access - earlier.set_access,
          .unmap = later.unmap - earlier.unmap};
}

}  // namespace cachalot::device_memory
