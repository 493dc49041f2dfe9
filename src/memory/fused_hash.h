// XXH3-64 that is computed while bytes are copied, so that a checksum costs no second pass over
// memory. Equal to XXH3_64bits (seed 0) over the same bytes.
//
// The bytes come as any number of pieces, each a multiple of 64 long (pool payloads are whole
// lines); the total is known from the start.
#pragma once

#include <cstddef>
#include <cstdint>

namespace cachalot::memory {

struct FusedHash {
  // @param total_bytes  all that will be hashed, a multiple of 64
  explicit FusedHash(std::uint64_t total_bytes);

  // The XXH3-64 of all bytes; call after exactly total_bytes were given.
  std::uint64_t finish();

  // State, advanced by the copy kernels (memory/copy_*.cpp).
  alignas(64) std::uint64_t accumulators[8];
  std::uint64_t total_bytes;
  std::uint64_t done_bytes = 0;
  alignas(64) unsigned char small[256];  // inputs of at most 240 bytes take XXH3's short path
  alignas(64) unsigned char last_line[64];
};

}  // namespace cachalot::memory
