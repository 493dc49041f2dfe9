// The byte stream that a transfer moves: one Strided, or several that take turns.
//
//   // A latent and its rope part, in tensors of their own, layer by layer:
//   ByteStream::make(layers, {latents of all layers, rope parts of all layers})
//
// In each turn every section gives the next `bytes / turns` of its bytes, in the order of the sections. So turn t is
// the range [t * turn_bytes(), (t + 1) * turn_bytes()) of the stream. With one turn the sections follow one another.
//
// 1. Both sides of a transfer agree on the order of the bytes only: their sections and runs may differ.
// 2. No size or address exceeds 63 bits.
#pragma once

#include <cachalot/result.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "transfer/strided/strided.h"

namespace cachalot::transfer {

inline constexpr std::size_t kMostSections = 64;

class ByteStream {
 public:
  ByteStream() = default;      // empty
  ByteStream(Strided stream);  // NOLINT: implicit on purpose; one section, one turn

  // @errors  kInvalidArgument: no turns; no sections or more than kMostSections; a section that is empty or has a
  //          number of bytes that the turns do not divide; a size beyond 63 bits
  static Result<ByteStream> make(std::uint64_t turns, std::vector<Strided> sections);

  std::uint64_t bytes() const { return bytes_; }
  std::uint64_t turns() const { return turns_; }
  std::uint64_t turn_bytes() const { return bytes_ / turns_; }
  // As Strided::runs(), of all sections.
  std::uint64_t runs() const;
  std::span<const Strided> sections() const { return sections_; }
  // All addresses are in [lowest(), end()). Those of one section: in its own, narrower, bounds.
  std::uint64_t lowest() const;
  std::uint64_t end() const;

 private:
  std::uint64_t bytes_ = 0, turns_ = 1;
  std::vector<Strided> sections_;
};

// As StridedCursor. Pieces end where a section's share of a turn ends.
class ByteStreamCursor {
 public:
  // The stream outlives the cursor.
  explicit ByteStreamCursor(const ByteStream& stream, std::uint64_t offset = 0);
  // @param offset  at most bytes()
  void seek(std::uint64_t offset);
  // The next bytes that lie together: at least 1, at most `most`. At the end of the stream: 0 bytes.
  Piece next(std::uint64_t most);
  std::uint64_t offset() const { return offset_; }

 private:
  void enter(std::size_t section, std::uint64_t turn, std::uint64_t skip);

  const ByteStream* stream_;
  StridedCursor cursor_;
  std::uint64_t offset_ = 0;
  std::size_t section_ = 0;
  std::uint64_t turn_ = 0, left_ = 0;  // bytes of the section's share that are left
};

// Copies `bytes` bytes from one stream to the other, both from `offset` on. Both are addresses of this process.
void copy_between(const ByteStream& from, const ByteStream& to, std::uint64_t offset,
                  std::uint64_t bytes);

}  // namespace cachalot::transfer
