// What a replay writes into a block, so that memory which two blocks share, or which was lost, shows:
// every 8 bytes are a number made of the block's own number and their place in it. The same on a processor
// and in a GPU's kernels.
#pragma once

#include <cstdint>

#include "base/host_device.h"

namespace cachalot::replay {

enum class Verify : std::uint8_t {
  kOff,
  kSample,  // the first and last bytes and eight in each 4 KiB: what mapping mistakes can change
  kFull,
};

inline constexpr std::uint64_t kPatternWordBytes = 8;

// How many of a block's words count; the i-th is at pattern_offset(i). A block of less than a word has none.
CACHALOT_HOST_DEVICE constexpr std::uint64_t pattern_words(std::uint64_t bytes, Verify verify) {
  if (verify == Verify::kOff || bytes < kPatternWordBytes) return 0;
  if (verify == Verify::kFull) return bytes / kPatternWordBytes;
  return (bytes - kPatternWordBytes) / 4096 + 2;  // one a page, and the last
}
CACHALOT_HOST_DEVICE constexpr std::uint64_t pattern_offset(std::uint64_t word, std::uint64_t bytes,
                                                            Verify verify) {
  if (verify == Verify::kFull) return word * kPatternWordBytes;
  const std::uint64_t last = (bytes - kPatternWordBytes) / kPatternWordBytes * kPatternWordBytes;
  return word * 4096 < last ? word * 4096 : last;
}
CACHALOT_HOST_DEVICE constexpr std::uint64_t pattern_word(std::uint64_t number,
                                                          std::uint64_t offset) {
  return (number << 40) ^ (offset * 0x9e3779b97f4a7c15u) ^ number;
}

}  // namespace cachalot::replay
