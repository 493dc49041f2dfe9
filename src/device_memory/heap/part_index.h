// The heads, or the tails, of a stream's free blocks, by their size.
//
// A part is smaller than a unit, so there is a list for each of 4,096 sizes, and a bit for each list that is not
// empty, and a bit for each word of bits that is not zero. Where units are larger than 2 MiB, a list has
// sizes that are close together.
//
// 1. A block is in the list of its part's size, and in no other, or has no such part.
// 2. A bit is set if and only if its list, or its word, has something.
//
// @threads one at a time
// @cost    every call O(1); 32 KiB of memory
#pragma once

#include <cachalot/result.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cstdint>
#include <memory>
#include <utility>

#include "device_memory/heap/block.h"

namespace cachalot::device_memory {

template <Part Block::*kPart>
class PartIndex {
 public:
  // @param unit_bytes  a power of two; every part is smaller
  void open(std::uint64_t unit_bytes) {
    step_bytes_ = std::max<std::uint64_t>(1, unit_bytes / kLists);
    lists_ = std::make_unique<std::array<Block*, kLists>>();
  }

  void enter(Block* block, std::uint64_t bytes) {
    Part& part = block->*kPart;
    part.bytes = bytes;
    if (bytes == 0) return;
    const std::uint64_t list = bytes / step_bytes_;
    part.prev = nullptr;
    part.next = std::exchange((*lists_)[list], block);
    if (part.next != nullptr) (part.next->*kPart).prev = block;
    bits_[list / 64] |= bit(list);
    words_ |= bit(list / 64);
  }

  void leave(Block* block) {
    const Part& part = block->*kPart;
    if (part.bytes == 0) return;
    if (part.next != nullptr) (part.next->*kPart).prev = part.prev;
    if (part.prev != nullptr) {
      (part.prev->*kPart).next = part.next;
      return;
    }
    const std::uint64_t list = part.bytes / step_bytes_;
    (*lists_)[list] = part.next;
    if (part.next != nullptr) return;
    bits_[list / 64] &= ~bit(list);
    if (bits_[list / 64] == 0) words_ &= ~bit(list / 64);
  }

  bool is_empty() const { return words_ == 0; }

  // One of the smallest that have at least `bytes`, > 0, but not `other`'s. Null: none was found.
  Block* at_least(std::uint64_t bytes, const Block* other = nullptr) const {
    std::uint64_t list = first_from((bytes + step_bytes_ - 1) / step_bytes_);
    if (list != kLists && (*lists_)[list] == other) {
      Block* const next = (other->*kPart).next;
      if (next != nullptr) return next;
      list = first_from(list + 1);
    }
    return list == kLists ? nullptr : (*lists_)[list];
  }

  // One of the largest that have less than `bytes`, > 0. Null: none was found.
  Block* below(std::uint64_t bytes) const {
    const std::uint64_t list = last_before(std::min(bytes / step_bytes_, kLists));
    return list == kLists ? nullptr : (*lists_)[list];
  }

  // @return how many there are @cost all of them
  Result<std::uint64_t> check() const {
    std::uint64_t count = 0;
    for (std::uint64_t list = 0; list < kLists; ++list) {
      const Block* prev = nullptr;
      for (const Block* block = (*lists_)[list]; block != nullptr;
           prev = block, block = (block->*kPart).next, ++count) {
        if ((block->*kPart).bytes / step_bytes_ != list || (block->*kPart).prev != prev) {
          return Error::make(Code::kCorrupt, "heap: a part is in the list of another size");
        }
      }
      const bool has_bits = (bits_[list / 64] & bit(list)) != 0;
      if (has_bits != (prev != nullptr) || (has_bits && (words_ & bit(list / 64)) == 0)) {
        return Error::make(Code::kCorrupt, "heap: a list of parts and its bit do not agree");
      }
    }
    return count;
  }

 private:
  static constexpr std::uint64_t kLists = 4096;

  static constexpr std::uint64_t bit(std::uint64_t i) { return std::uint64_t{1} << (i % 64); }

  // kLists: there is none.
  std::uint64_t first_from(std::uint64_t list) const {
    if (list >= kLists) return kLists;
    const std::uint64_t here = bits_[list / 64] & (~std::uint64_t{0} << (list % 64));
    if (here != 0) return list / 64 * 64 + static_cast<unsigned>(std::countr_zero(here));
    if (list / 64 == 63) return kLists;
    const std::uint64_t words = words_ & (~std::uint64_t{0} << (list / 64 + 1));
    if (words == 0) return kLists;
    const auto word = static_cast<unsigned>(std::countr_zero(words));
    return word * 64 + static_cast<unsigned>(std::countr_zero(bits_[word]));
  }

  std::uint64_t last_before(std::uint64_t list) const {
    const std::uint64_t here = list == kLists ? 0 : bits_[list / 64] & (bit(list) - 1);
    if (here != 0) return list / 64 * 64 + static_cast<unsigned>(std::bit_width(here)) - 1;
    const std::uint64_t words = list == kLists ? words_ : words_ & (bit(list / 64) - 1);
    if (words == 0) return kLists;
    const auto word = static_cast<unsigned>(std::bit_width(words)) - 1;
    return word * 64 + static_cast<unsigned>(std::bit_width(bits_[word])) - 1;
  }

  std::uint64_t step_bytes_ = 1;
  std::uint64_t words_ = 0;
  std::array<std::uint64_t, 64> bits_{};
  std::unique_ptr<std::array<Block*, kLists>> lists_;
};

}  // namespace cachalot::device_memory
