// XXH3-64 that is computed while bytes are copied, so that a checksum costs no second pass over
// memory. Equal to XXH3_64bits (seed 0) over the same bytes.
//
// The bytes come as any number of pieces, each a multiple of 64 long (pool payloads are whole
// lines); the total is known from the start.
//
//   FusedHash hash(total);
//   for (each piece) domain.write_bulk(to, from, piece_bytes, &hash);
//   entry.checksum = hash.finish();
//
// @threads  one at a time
#pragma once

#include <cstddef>
#include <cstdint>

namespace cachalot::memory {

class FusedHash {
 public:
  // @param total_bytes  all that will be hashed, a multiple of 64
  explicit FusedHash(std::uint64_t total_bytes);

  // Hashes a piece that needs no copy. @cost at the speed of reading memory
  void update(const void* data, std::size_t bytes);

  // The XXH3-64 of all bytes; call after exactly total_bytes were given.
  std::uint64_t finish() const;

 private:
  template <class Vector>
  friend struct CopyLoops;  // advances the state inside the copy (memory/copy_loops.h)
  template <class Vector>
  friend struct CopyRunLoops;

  bool is_short() const { return total_bytes_ <= sizeof small_; }

  alignas(64) std::uint64_t accumulators_[8];
  alignas(64) unsigned char small_[192];  // an input of at most 3 lines, which XXH3 takes whole
  std::uint64_t total_bytes_;
  std::uint64_t done_bytes_ = 0;
};

// The XXH3-64 of a flat buffer, as a FusedHash over it would give.
// @param bytes  a multiple of 64
std::uint64_t hash_lines(const void* data, std::size_t bytes);

}  // namespace cachalot::memory
