// Which nodes of a forest are in which tier, which are locked, and which may be evicted.
//
// 1. A node but a root is in at least one tier.
// 2. The parent of a node in device memory is in device memory, or a root.
// 3. A node has a slot for each of its pages in each tier it is in.
// 4. A node's locks in a tier are its own and one for each child that has any: so the ancestors of a locked
//    node are locked. A node with locks in device memory is in device memory.
// 5. The device queue holds the nodes in device memory without locks there and without a child there.
// 6. The host queue holds the nodes in host memory alone without locks there and without a child.
// 7. use(tier) are the pages of the nodes in the tier, and those of them that are locked there.
//
// By 2 the nodes that are in host memory alone lie below the others. A host copy of a node that is also in
// device memory is no victim: drop() it where it is a duplicate too many.
#pragma once

#include <array>
#include <cstdint>
#include <span>

#include "eviction/leaf_queue.h"
#include "tier/radix/prefix_forest.h"
#include "tier/radix/tier.h"

namespace cachalot::tier {

// @threads one at a time
// @cost    O(log leaves) where a node becomes a leaf or is one no more, else O(1)
class TieredForest {
 public:
  TieredForest(std::uint32_t page_tokens, eviction::LeafOrder device_order,
               eviction::LeafOrder host_order);

  const PrefixForest& forest() const { return forest_; }
  const RadixNode& operator[](NodeId node) const { return forest_[node]; }
  const TierUse& use(Tier tier) const { return use_[index(tier)]; }
  // Locks that are not released yet.
  std::uint64_t held_locks() const { return held_locks_[0] + held_locks_[1]; }

  NodeId find_or_add_root(const RadixKey& key) { return forest_.find_or_add_root(key); }
  // A new leaf in one tier, whose parent allows it. Its depth is not taken from `history`.
  NodeId add_leaf(NodeId parent, std::span<const Token> tokens, Tier tier,
                  std::span<const Slot> slots, std::span<const BlockHash> hashes,
                  const eviction::LeafHistory& history);
  // As PrefixForest::split(): locks and tiers of both are those of `lower`.
  NodeId split(NodeId lower, std::uint32_t pages);
  // Whether the rules allow a node below `parent` in `tier`.
  bool may_be_below(NodeId parent, Tier tier) const;
  // `node` is not in `tier`, and may be.
  void put(Tier tier, NodeId node, std::span<const Slot> slots);
  // `node` is in `tier`, unlocked there, and in the other tier; no rule forbids it.
  void drop(Tier tier, NodeId node, FreedSlots& freed);
  // `node` has neither children nor locks.
  void remove(NodeId node, FreedSlots& freed);
  // All nodes; there are no locks.
  void clear(FreedSlots& freed);

  // A use of a node, which counts or not.
  void touch(NodeId node, std::uint64_t now, bool counts) {
    eviction::LeafHistory& history = forest_[node].history;
    history.used_at = now;
    if (counts && history.uses != 0xffffffffu) ++history.uses;
    if (follows_uses_) [[unlikely]]
      follow_use(node);
  }
  void raise_priority(NodeId node, std::int32_t priority);
  void set_hashes(NodeId node, std::span<const BlockHash> hashes);
  void set_backup(NodeId node, BackupTicket ticket) { forest_[node].backup = ticket; }

  // `node` is in `tier`, for locks in device memory; kNoNode: nothing to lock.
  void lock(Tier tier, NodeId node);
  // Takes back a lock().
  void unlock(Tier tier, NodeId node);

  // The next victim of a tier, or kNoNode.
  NodeId first_leaf(Tier tier);
  // Takes a leaf out of its queue until settle(): for a victim that cannot be evicted now.
  void pass_over(Tier tier, NodeId leaf) { queues_[index(tier)].erase(leaf); }
  void settle(NodeId node);

  // Checks the invariants and those of the forest. O(nodes).
  bool is_valid() const;

 private:
  bool is_leaf(Tier tier, const RadixNode& node) const;
  void release_slots(Tier tier, NodeId node, FreedSlots& freed);
  void follow_use(NodeId node);
  void grow_queues();

  PrefixForest forest_;
  std::array<eviction::LeafQueue, kTiers> queues_;
  bool follows_uses_;
  std::array<TierUse, kTiers> use_ = {};
  std::array<std::uint64_t, kTiers> held_locks_ = {};
};

}  // namespace cachalot::tier
