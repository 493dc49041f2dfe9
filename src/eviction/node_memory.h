// What a policy remembers of a resident node, and the ranks that follow from it: the lowest leaf is evicted.
#pragma once

#include <cstdint>

#include "eviction/policy_kind.h"
#include "eviction/structure/indexed_heap.h"

namespace cachalot::eviction {

// What a resident node remembers. Forgotten when it is erased.
struct NodeMemory {
  std::uint64_t stored_at = 0;  // counted in uses and stores of the whole policy, no clock
  std::uint64_t used_at = 0;    // likewise; being stored is the first use
  std::uint32_t uses = 0;
  std::uint32_t depth = 0;  // 0 for a root: its place in every request
};

// First in, first out.
struct FifoOrder {
  static constexpr PolicyKind kKind = PolicyKind::kFifo;
  static constexpr bool kIsTouched = false;
  static Rank rank(const NodeMemory& node) { return {node.stored_at, 0}; }
};

// Least frequently used while in the cache, then least recently used.
struct LfuOrder {
  static constexpr PolicyKind kKind = PolicyKind::kLfu;
  static constexpr bool kIsTouched = true;
  static Rank rank(const NodeMemory& node) { return {node.uses, node.used_at}; }
};

// Least frequently used, then latest in its request, then least recently used.
// @source Qin et al., Mooncake, arXiv 2407.00079, §6 names it and says no more
struct LengthAwareOrder {
  static constexpr PolicyKind kKind = PolicyKind::kLengthAware;
  static constexpr bool kIsTouched = true;
  static Rank rank(const NodeMemory& node) {
    return {std::uint64_t{node.uses} << 32 | (0xffffffffu - node.depth), node.used_at};
  }
};

}  // namespace cachalot::eviction
