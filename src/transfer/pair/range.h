// Layers or heads [first, last).
#pragma once

#include <cstdint>

namespace cachalot::transfer {

struct Range {
  std::uint32_t first = 0, last = 0;

  std::uint32_t count() const { return last - first; }
  bool operator==(const Range&) const = default;
};

}  // namespace cachalot::transfer
