// For tests: where the state spaces are. Addresses of a space begin above 0, and each space but global has
// a window in generic addresses, beyond everything that a device or a host has. A generic address cut to 32
// bits is none of the space.
#pragma once

#include <cstdint>

namespace cachalot::ptx {

// In the space. Shared memory begins where a GPU's own kilobyte of it ends.
inline constexpr std::uint64_t kSharedBase = 1024, kLocalBase = 256, kParameterBase = 0x210;

inline constexpr std::uint64_t kWindowBytes = std::uint64_t{1} << 32;
inline constexpr std::uint64_t kSharedWindow = (std::uint64_t{0x51} << 56) + (3u << 28);
inline constexpr std::uint64_t kLocalWindow = (std::uint64_t{0x52} << 56) + (5u << 28);
inline constexpr std::uint64_t kParameterWindow = (std::uint64_t{0x53} << 56) + (7u << 28);

inline constexpr bool in_window(std::uint64_t address, std::uint64_t window) {
  return address >= window && address - window < kWindowBytes;
}

}  // namespace cachalot::ptx
