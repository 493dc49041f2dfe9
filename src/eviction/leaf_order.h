// In which order a tree that keeps its own records gives up its leaves: lru, lfu, fifo, length_aware, slru,
// priority, mru and filo.
//
// An EvictionPolicy keeps the tree, the records and the order in one object, for callers whose tree has one
// tier. A tree whose nodes are in several tiers, are split, and come back to a tier has one record a node,
// which outlives each tier's copy; it takes its order from here and its queues from LeafQueue.
#pragma once

#include <cachalot/result.h>

#include <cstdint>
#include <string>
#include <string_view>

#include "eviction/node_memory.h"

namespace cachalot::eviction {

// The record of a node. `depth` is its place in a request, in any unit.
struct LeafHistory : NodeMemory {
  std::int32_t priority = 0;  // the lowest is evicted first
};

enum class LeafOrderKind : std::uint8_t {
  kLru,          // least recently used, then first in its request
  kLfu,          // fewest uses, then least recently used
  kFifo,         // stored first
  kLengthAware,  // fewest uses, then latest in its request
  kSlru,         // fewer than `protected_uses` uses first; of those, least recently used
  kPriority,     // lowest priority, then least recently used
  kMru,          // most recently used
  kFilo,         // stored last
};

struct LeafOrder {
  LeafOrderKind kind = LeafOrderKind::kLru;
  std::uint32_t protected_uses = 2;  // kSlru only

  // The leaf of the lowest rank is evicted first.
  Rank rank(const LeafHistory& leaf) const;
  // A use of a leaf never lowers its rank.
  bool is_raised_by_uses() const { return kind != LeafOrderKind::kMru; }
};

// "lru, lfu, …"
std::string leaf_order_names();
// Upper and lower case are the same.
// @errors kInvalidArgument: no such order; the message lists those there are
Result<LeafOrder> parse_leaf_order(std::string_view name);

}  // namespace cachalot::eviction
