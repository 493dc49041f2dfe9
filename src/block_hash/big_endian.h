// Eight bytes as a number, the most significant first: as hashes are written.
#pragma once

#include <cstdint>

namespace cachalot::block_hash {

inline std::uint64_t big_endian(const std::uint8_t* bytes) {
  std::uint64_t value = 0;
  for (int i = 0; i < 8; ++i) value = value << 8 | bytes[i];
  return value;
}

}  // namespace cachalot::block_hash
