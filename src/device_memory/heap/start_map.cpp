#include "device_memory/heap/start_map.h"

#include <bit>

namespace cachalot::device_memory {
namespace {

constexpr std::uint64_t kBits = 64;

std::uint64_t words_for(std::uint64_t bits) {
  return (bits + kBits - 1) / kBits;
}

}  // namespace

void StartMap::grow(std::uint64_t units) {
  if (units <= last_start_.size()) return;
  last_start_.resize(units, nullptr);
  std::uint64_t words = words_for(units);
  for (std::size_t level = 0;; ++level) {
    if (level == levels_.size()) {
      // A level on top of one that had a single word: it says whether that word has a bit.
      const bool has_any = level != 0 && levels_[level - 1][0] != 0;
      levels_.push_back({has_any ? 1u : 0u});
    }
    levels_[level].resize(words, 0);
    if (words == 1) return;
    words = words_for(words);
  }
}

void StartMap::set(std::uint64_t unit, Block* block) {
  const bool had = last_start_[unit] != nullptr;
  last_start_[unit] = block;
  if (had == (block != nullptr)) return;
  std::uint64_t bit = unit;
  for (std::vector<std::uint64_t>& level : levels_) {
    std::uint64_t& word = level[bit / kBits];
    const std::uint64_t before = word;
    word ^= std::uint64_t{1} << (bit % kBits);
    // The level above changes only when the word becomes empty, or stops to be.
    if (before != 0 && word != 0) return;
    bit /= kBits;
  }
}

Block* StartMap::last_up_to(std::uint64_t unit) const {
  std::uint64_t end = unit + 1;  // bits [0, end) of the level count
  for (std::size_t level = 0; level < levels_.size(); ++level) {
    const std::uint64_t word_index = (end - 1) / kBits;
    const std::uint64_t below = (end - 1) % kBits + 1;
    const std::uint64_t mask = below == kBits ? ~std::uint64_t{0} : (std::uint64_t{1} << below) - 1;
    const std::uint64_t word = levels_[level][word_index] & mask;
    if (word != 0) {
      std::uint64_t bit = word_index * kBits + kBits - 1 - std::countl_zero(word);
      for (std::size_t down = level; down-- > 0;) {
        bit = bit * kBits + kBits - 1 - std::countl_zero(levels_[down][bit]);
      }
      return last_start_[bit];
    }
    if (word_index == 0) return nullptr;
    end = word_index;
  }
  return nullptr;
}

}  // namespace cachalot::device_memory
