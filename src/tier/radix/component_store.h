// Which nodes have which components in which tier, and whose are evicted next.
//
// 1. A node that has a component in a tier has one slot a page, or one slot in all by kLastOnly.
// 2. The queue of a component and tier holds the nodes that have it there and are not locked for it.
// 3. slots(component, tier) counts the slots of all nodes.
//
// A component is evicted from any node, not from leaves alone: the least recently used first, and of nodes of one
// path the one nearest to the root, whose window was passed first.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "eviction/leaf_queue.h"
#include "tier/radix/radix_node.h"
#include "tier/radix/tier.h"

namespace cachalot::tier {

// The records are the caller's: it names a node by its id and its record.
//
// @threads one at a time
// @cost    O(log nodes) for put, drop, lock and unlock
class ComponentStore {
 public:
  // @shape components: at most kMaxComponents
  explicit ComponentStore(std::span<const Component> components);

  std::size_t size() const { return components_.size(); }
  const Component& component(std::size_t c) const { return components_[c]; }
  std::uint64_t slots(std::size_t c, Tier tier) const { return counts_[c][index(tier)]; }
  void grow(std::uint32_t capacity_nodes);

  static bool is_in(std::size_t c, Tier tier, const RadixNode& node) {
    return node.components != nullptr && !node.components->parts[c].slots[index(tier)].empty();
  }
  static bool is_locked(std::size_t c, const RadixNode& node) {
    return node.components != nullptr && node.components->parts[c].locks != 0;
  }
  // How many slots `node` has when it has the component.
  std::uint32_t slots_of(std::size_t c, const RadixNode& node) const {
    return components_[c].rule == HitRule::kLastOnly ? 1 : node.pages;
  }

  // `node` does not have it yet.
  void put(std::size_t c, Tier tier, NodeId id, RadixNode& node, std::span<const Slot> slots);
  // `node` has it.
  void drop(std::size_t c, Tier tier, NodeId id, RadixNode& node, FreedSlots& freed);
  // All that `node` has in the tier.
  void drop_all(Tier tier, NodeId id, RadixNode& node, FreedSlots& freed);
  // After a split: the pages of `lower` that are those of `upper` now, and its locks.
  void split(NodeId upper, RadixNode& above, NodeId lower, RadixNode& below);
  void lock(std::size_t c, NodeId id, RadixNode& node);
  void unlock(std::size_t c, NodeId id, RadixNode& node);

  // The node to lose it next, or kNoNode.
  template <class HistoryOf>
  NodeId first(std::size_t c, Tier tier, HistoryOf&& history_of) {
    return queues_[c][index(tier)].first(history_of);
  }

  // Checks the invariants for all nodes of a tree. O(nodes).
  template <class NodeOf>
  bool is_valid(std::span<const NodeId> nodes, NodeOf&& node_of) const {
    Counts counts = {}, queued = {};
    for (const NodeId id : nodes) {
      if (!is_valid_node(id, node_of(id), counts, queued)) return false;
    }
    return counts == counts_ && has_sizes(queued);
  }

 private:
  using Counts = std::array<std::array<std::uint64_t, kTiers>, kMaxComponents>;

  void settle(std::size_t c, NodeId id, const RadixNode& node);
  bool is_valid_node(NodeId id, const RadixNode& node, Counts& counts, Counts& queued) const;
  bool has_sizes(const Counts& queued) const;

  std::vector<Component> components_;
  std::vector<std::array<eviction::LeafQueue, kTiers>> queues_;
  Counts counts_ = {};
};

}  // namespace cachalot::tier
