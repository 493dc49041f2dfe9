// A line: 64 aligned bytes, the unit in which everything that is shared in a pool is published.
//
// A published line carries its own proof (design page pool, rule R5): its last four bytes are a
// CRC-32C over the pool's uuid, the line's address in the pool, a salt (the incarnation, where the
// line belongs to one) and its first 60 bytes. A line of another pool, another place, another
// incarnation, a torn line, an all-zero and an all-ones line do not check.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "base/crc32c.h"

namespace cachalot::memory {

inline constexpr std::size_t kLineBytes = 64;

struct alignas(kLineBytes) Line {
  std::uint64_t words[8];

  bool operator==(const Line&) const = default;
};
static_assert(sizeof(Line) == kLineBytes);

// Reads a published line of type T (64 bytes, trivially copyable) out of raw bytes and back.
template <class T>
T as(const Line& line) {
  static_assert(sizeof(T) == kLineBytes);
  T value;
  std::memcpy(&value, &line, sizeof value);
  return value;
}
template <class T>
Line to_line(const T& value) {
  static_assert(sizeof(T) == kLineBytes);
  Line line;
  std::memcpy(&line, &value, sizeof line);
  return line;
}

// Seals and checks the lines of one pool. The uuid, and the salt where there is one, are folded in
// once, here.
class LineSeal {
 public:
  LineSeal() = default;
  LineSeal(std::uint64_t uuid_low, std::uint64_t uuid_high)
      : seed_(base::crc32c_word(base::crc32c_word(base::kCrc32cInit, uuid_low), uuid_high)) {}

  // A seal for lines that belong to one incarnation: others' lines do not check under it.
  LineSeal salted(std::uint64_t salt) const {
    LineSeal result = *this;
    result.seed_ = base::crc32c_word(seed_, salt);
    return result;
  }

  // @param address  offset of the line on its device  @cost about 30 cycles of latency
  void seal(Line& line, std::uint64_t address) const {
    const std::uint64_t value = crc(line, address);
    line.words[7] = (line.words[7] & 0xffffffffu) | (value << 32);
  }

  bool checks(const Line& line, std::uint64_t address) const {
    return (line.words[7] >> 32) == crc(line, address) && !is_blank(line);
  }

 private:
  std::uint32_t crc(const Line& line, std::uint64_t address) const {
    std::uint32_t crc = base::crc32c_word(seed_, address);
#pragma GCC unroll 8
    for (int i = 0; i < 7; ++i) crc = base::crc32c_word(crc, line.words[i]);
    return base::crc32c_word(crc, line.words[7] & 0xffffffffu);
  }

  // What unwritten or lost memory looks like; such a line never checks, whatever its CRC says.
  static bool is_blank(const Line& line) {
    if (line.words[7] != 0 && ~line.words[7] != 0) return false;
    std::uint64_t any = 0, all = ~std::uint64_t{0};
    for (const std::uint64_t word : line.words) {
      any |= word;
      all &= word;
    }
    return any == 0 || ~all == 0;
  }

  std::uint32_t seed_ = base::kCrc32cInit;
};

}  // namespace cachalot::memory
