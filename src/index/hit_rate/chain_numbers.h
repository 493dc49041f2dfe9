// Numbers the prefixes of a trace: the same chain of ids, the same number, counted from 0.
//
// Exact, without a hash that could collide: a prefix is (number of its parent, own id). An id that
// stands for its content only, and not for what is before it, becomes one number for each parent.
#pragma once

#include <cstdint>
#include <vector>

#include "index/eviction/node.h"

namespace cachalot::index {

// @threads one at a time
// @cost    amortised O(1): a table of 16-byte slots, at most two thirds full
class ChainNumbers {
 public:
  ChainNumbers();

  // The number of the prefix that ends in `id` below `parent` (kNoNode: it starts there), new or
  // known. kNoNode when all kMaxNodes numbers are taken.
  std::uint32_t number_of(std::uint32_t parent, std::uint64_t id);

  std::uint32_t size() const { return size_; }

 private:
  struct Slot {
    std::uint64_t id = 0;
    std::uint32_t parent = 0;
    std::uint32_t number = kNoNode;  // kNoNode: the slot is free
  };

  Slot& find(std::uint32_t parent, std::uint64_t id);
  void rehash();

  std::vector<Slot> slots_;  // a power of two
  std::uint32_t size_ = 0;
};

}  // namespace cachalot::index
