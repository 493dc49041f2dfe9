#include "replay/pattern/block_pattern.h"

#include <cstring>

namespace cachalot::replay {

void write_pattern(std::byte* at, std::uint64_t bytes, std::uint64_t number, Verify verify) {
  const std::uint64_t words = pattern_words(bytes, verify);
  for (std::uint64_t i = 0; i < words; ++i) {
    const std::uint64_t offset = pattern_offset(i, bytes, verify);
    const std::uint64_t word = pattern_word(number, offset);
    std::memcpy(at + offset, &word, kPatternWordBytes);
  }
}

std::uint64_t count_wrong(const std::byte* at, std::uint64_t bytes, std::uint64_t number,
                          Verify verify) {
  const std::uint64_t words = pattern_words(bytes, verify);
  std::uint64_t wrong = 0;
  for (std::uint64_t i = 0; i < words; ++i) {
    const std::uint64_t offset = pattern_offset(i, bytes, verify);
    std::uint64_t word = 0;
    std::memcpy(&word, at + offset, kPatternWordBytes);
    wrong += word != pattern_word(number, offset);
  }
  return wrong;
}

Status OwnMemory::write(std::uint64_t at, std::uint64_t bytes, std::uint64_t number,
                        Verify verify) {
  write_pattern(reinterpret_cast<std::byte*>(at), bytes, number, verify);
  return {};
}

Result<std::uint64_t> OwnMemory::count_wrong(std::uint64_t at, std::uint64_t bytes,
                                             std::uint64_t number, Verify verify) {
  return replay::count_wrong(reinterpret_cast<const std::byte*>(at), bytes, number, verify);
}

}  // namespace cachalot::replay
