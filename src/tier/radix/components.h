// The components of a hybrid model in a radix tree: their slots, locks and eviction.
//
// 1. A node that has a component in a tier is in that tier.
//
// A node of a path may lack a component (a gap): a window that was passed, a state that was not kept. A
// match gives the longest prefix at whose end the rule of each component holds (HitRule).
#pragma once

#include <cachalot/result.h>

#include <cstdint>
#include <span>
#include <vector>

#include "tier/radix/tiered_forest.h"

namespace cachalot::tier {

// @threads one at a time
class Components {
 public:
  explicit Components(TieredForest& nodes) : nodes_(nodes) {}

  // Empty: the node does not have it there.
  std::span<const Slot> slots(std::size_t c, Tier tier, NodeId node) const;
  std::uint64_t use(std::size_t c, Tier tier) const { return nodes_.components().slots(c, tier); }

  // The last pages of the prefix that ends with `node` have the component from now on, by kLastOnly its end.
  // Splits a node where they begin. Slots of pages that have it are appended to `surplus`.
  // @shape  slots: one for each of these pages; one by kLastOnly
  // @errors kInvalidArgument: no slots, or more than the prefix has pages;
  //         kRefused: a node of these pages is not in the tier. Nothing is changed then
  Status attach(std::size_t c, Tier tier, NodeId node, std::span<const Slot> slots,
                std::vector<Slot>& surplus);

  // What the rule needs for the prefix that ends with `node` stays until unlock(). Splits a node where the window
  // begins. The node is locked in device memory before, and longer; the window may be unlocked first.
  void lock(std::size_t c, NodeId node);
  void unlock(std::size_t c, NodeId node);

  // Drops copies in device memory on the path to `node` until `most` are left, nearest to the root first. Spares
  // the last one, nodes locked for the component, and nodes of several children, where requests part.
  void keep_last(std::size_t c, NodeId node, std::size_t most, FreedSlots& freed);

  // Takes the component from nodes until `slots` slots have left the tier or none is left that may; returns how
  // many left. KV of full attention stays.
  std::uint64_t evict(std::size_t c, Tier tier, std::uint64_t slots, FreedSlots& freed);

 private:
  std::uint32_t locked_pages(std::size_t c, NodeId node) const;

  TieredForest& nodes_;
};

// Follows a path and tells at which of its places each rule holds, in device memory and in any tier.
class HitRules {
 public:
  explicit HitRules(const ComponentStore& store) : store_(store) {}

  // The next `pages` pages are the first of `node`, all of them or some.
  void add(const RadixNode& node, std::uint32_t pages);
  // For the prefix that ends here.
  bool holds_in_device() const { return holds_[0]; }
  bool holds() const { return holds_[1]; }

 private:
  const ComponentStore& store_;
  std::uint32_t pages_ = 0;
  // Pages before this place that have it without a gap: in device memory; in any tier.
  std::array<std::array<std::uint32_t, 2>, kMaxComponents> runs_ = {};
  std::array<bool, 2> holds_ = {true, true};
};

}  // namespace cachalot::tier
