// The bytes of a replayed block: every one of them follows from the block's hash, so that any reader that
// reads the block can check all of them without having seen it before.
//
//   line 0   word 0  hash, low half          word 4  check of words 0 to 3
//            word 1  hash, high half         word 5  pattern
//            word 2  writer: engine number   word 6  pattern
//            word 3  writer's block count    word 7  pattern
//   line 1…  pattern: word i is shift_mix(a + i * b), a and b (odd) from the hash
//
// The pattern repeats no word within a block, and two hashes agree in no more than chance words: a
// line in another's place, a line of another block and a shifted line are all noticed.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "block_hash/block_hash.h"

namespace cachalot::replay {

// What a payload says of its writer.
struct PayloadStamp {
  std::uint64_t writer = 0;  // engine number
  std::uint64_t count = 0;   // how many blocks it had written before

  friend bool operator==(const PayloadStamp&, const PayloadStamp&) = default;
};

enum class VerifyMode {
  kFull,    // every byte
  kSample,  // every 16th line, the first and the last among them
  kOff,     // the stamp only
};

struct PayloadCheck {
  static constexpr std::uint64_t kNoByte = ~std::uint64_t{0};

  PayloadStamp stamp;
  std::uint64_t checked_bytes = 0;
  std::uint64_t first_bad_byte = kNoByte;  // the first byte of the first wrong word that was seen

  bool ok() const { return first_bad_byte == kNoByte; }
};

// @shape to: whole lines, at least one
// @cost  one store a line: about the bandwidth of the cache that `to` is in
void fill_payload(const BlockHash& hash, const PayloadStamp& stamp, std::span<std::byte> to);

// Checks what a payload of `hash` must be, written by an engine below `engines`, without writing
// anything down for the comparison.
// @shape from: whole lines, at least one
// @cost  one load a line
PayloadCheck check_payload(const BlockHash& hash, std::uint64_t engines, VerifyMode mode,
                           std::span<const std::byte> from);

}  // namespace cachalot::replay
