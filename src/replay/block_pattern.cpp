#include "replay/block_pattern.h"

#include <cstring>

namespace cachalot::replay {
namespace {

constexpr std::uint64_t kWord = sizeof(std::uint64_t);
constexpr std::uint64_t kPage = 4096;

std::uint64_t word_at(std::uint64_t number, std::uint64_t offset) {
  return (number << 40) ^ (offset * 0x9e3779b97f4a7c15u) ^ number;
}

// Calls visit(offset) for each whole word that counts.
template <class Visit>
void for_each_word(std::uint64_t bytes, Verify verify, Visit visit) {
  if (verify == Verify::kOff || bytes < kWord) return;
  const std::uint64_t step = verify == Verify::kFull ? kWord : kPage;
  for (std::uint64_t offset = 0; offset + kWord <= bytes; offset += step) visit(offset);
  if (verify == Verify::kSample) visit((bytes - kWord) / kWord * kWord);
}

}  // namespace

void write_pattern(std::byte* at, std::uint64_t bytes, std::uint64_t number, Verify verify) {
  for_each_word(bytes, verify, [&](std::uint64_t offset) {
    const std::uint64_t word = word_at(number, offset);
    std::memcpy(at + offset, &word, kWord);
  });
}

std::uint64_t count_wrong(const std::byte* at, std::uint64_t bytes, std::uint64_t number,
                          Verify verify) {
  std::uint64_t wrong = 0;
  for_each_word(bytes, verify, [&](std::uint64_t offset) {
    std::uint64_t word = 0;
    std::memcpy(&word, at + offset, kWord);
    wrong += word != word_at(number, offset);
  });
  return wrong;
}

}  // namespace cachalot::replay
