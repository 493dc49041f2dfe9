// Numbers the prefixes of a trace: the same chain of ids, the same number, counted from 0.
//
// Exact, without a hash that could collide: a prefix is (number of its parent, own id). An id that
// stands for its content only, and not for what is before it, becomes one number for each parent.
//
// A prefix has its place in the four slots, one cache line, that its id alone chooses: so the lines of all
// ids of a request can be fetched before the first parent's number is known. Where those are full, as by an
// id below many parents, it goes to the first free slot from one that parent and id choose.
#pragma once

#include <cachalot/result.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "base/huge_allocator.h"
#include "base/rng.h"
#include "eviction/structure/node.h"

namespace cachalot::cache_sim {

// @threads one at a time
// @cost    amortised O(1): a table of 16-byte slots, at most two thirds full; mostly one cache line
class ChainNumbers {
 public:
  // As many numbers as it may give out: all there are, but for tests.
  explicit ChainNumbers(std::uint32_t most = eviction::kMaxNodes) : most_(most), slots_(1024) {}

  // The number of the prefix that ends in `id` below `parent` (kNoNode: it starts there), new or
  // known. kNoNode when all numbers are taken and the prefix is new.
  std::uint32_t number_of(std::uint32_t parent, std::uint64_t id);

  // Appends the numbers of a whole path, root first.
  // @errors kUnsupported: all numbers are taken
  Status append_path(std::span<const std::uint64_t> ids, std::vector<std::uint32_t>& path);

  // An id that will be asked for soon.
  void prefetch(std::uint64_t id) const { __builtin_prefetch(slots_.data() + line_of(id)); }

  std::uint32_t size() const { return size_; }

 private:
  struct Slot {
    std::uint64_t id = 0;
    std::uint32_t parent = 0;
    std::uint32_t number = eviction::kNoNode;  // kNoNode: the slot is free
  };

  static constexpr std::size_t kLineSlots = 4;

  std::size_t line_of(std::uint64_t id) const {
    return base::mix64(id) & (slots_.size() - 1) & ~(kLineSlots - 1);
  }
  Slot& find(std::uint32_t parent, std::uint64_t id);
  void rehash();

  std::uint32_t most_;
  base::HugeVector<Slot> slots_;  // a power of two
  std::uint32_t size_ = 0;
};

}  // namespace cachalot::cache_sim
