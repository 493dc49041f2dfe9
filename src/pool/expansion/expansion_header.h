// What tells a device that was added to a pool from those that the pool was made with.
#pragma once

#include <cstdint>

#include "memory/interleave.h"

namespace cachalot::pool {

// The header's device_index of all of them.
inline constexpr std::uint32_t kExpansionIndex = 0xffffffffu;

// Of a device with so many bytes of blocks.
constexpr std::uint64_t expansion_file_bytes(std::uint64_t bytes) {
  return memory::kStripeBytes + bytes;
}

}  // namespace cachalot::pool
