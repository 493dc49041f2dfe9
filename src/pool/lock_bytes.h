// The bytes of device 0's file that the pool's locks are on; far beyond any byte that exists.
#pragma once

#include <cstdint>

#include "pool/format/format.h"

namespace cachalot::pool {

inline constexpr std::uint64_t kFirstKeeperLock = std::uint64_t{1} << 62;  // one per keeper area
inline constexpr std::uint64_t kSuccessionLock = kFirstKeeperLock + kKeeperSlots;
inline constexpr std::uint64_t kMakerLock = kSuccessionLock + 1;
inline constexpr std::uint64_t kFirstClientLock = kFirstKeeperLock + 16;

}  // namespace cachalot::pool
