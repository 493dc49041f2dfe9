// The books of L1 and L2: the tree, the free slots of both tiers, and eviction.
//
// 1. A slot of a tier is free, in the tree, or taken by a request or a job.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "tier/controller/slot_pool.h"
#include "tier/radix/radix_tree.h"

namespace cachalot::tier {

struct EvictionCounts {
  std::uint64_t device_blocks = 0, host_blocks = 0, demoted_blocks = 0;
};

// @threads one at a time
class TierBook {
 public:
  // Copies a node of L1 to slots of L2, before L1 evicts it.
  using Demote = std::function<void(NodeId node, std::span<const Slot> host)>;

  TierBook(const RadixOptions& options, std::uint32_t device_blocks, std::uint32_t host_blocks,
           Demote demote);

  // false: what L1 evicts without a copy in L2 is dropped.
  void set_demotes(bool demotes) { demotes_ = demotes; }

  RadixTree& tree() { return tree_; }
  const RadixTree& tree() const { return tree_; }
  const SlotPool& pool(Tier tier) const { return tier == Tier::kDevice ? device_ : host_; }
  const EvictionCounts& counts() const { return counts_; }

  // Appends slots, and evicts for them. False: not so many can be had, and none are taken.
  bool take(Tier tier, std::uint32_t count, std::vector<Slot>& slots);
  void give(Tier tier, std::span<const Slot> slots);
  void give(const FreedSlots& freed);
  // Nodes that L1 has given to L2 since the last call and L2 still has.
  std::vector<NodeId> take_demoted();
  // The nodes of the path to `node`, from the root's child on.
  std::vector<NodeId> path(NodeId node) const;
  // Gives up L2's copies of the path's nodes that are in L1, too, and not locked in L2.
  void drop_duplicates(NodeId node);
  // @errors kBusy: something is locked
  Status clear();
  bool is_valid() const;

 private:
  SlotPool& free_of(Tier tier) { return tier == Tier::kDevice ? device_ : host_; }
  UnbackedVictim demote(NodeId node);

  RadixTree tree_;
  SlotPool device_, host_;
  Demote demote_;
  bool demotes_ = false;
  std::vector<NodeId> demoted_;
  EvictionCounts counts_;
};

}  // namespace cachalot::tier
