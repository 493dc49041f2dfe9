// Leaf eviction by a rank that is a function of what a node remembers: the lowest leaf goes.
//
// The leaves stand in a heap; inner nodes only remember. When the last child of a node goes, the node
// comes into the heap with the rank it has by then.
//
// 1. The heap holds the resident leaves that are not held (hold()), each once, and nothing else.
// 2. A leaf's rank in the heap is Order::rank() of its record.
#pragma once

#include <cstdint>
#include <vector>

#include "eviction/eviction_policy.h"
#include "eviction/holds.h"
#include "eviction/node_memory.h"
#include "eviction/residency.h"
#include "eviction/structure/indexed_heap.h"

namespace cachalot::eviction {

// @threads one at a time
// @cost    touch: O(depth), and O(log leaves) once; insert, erase: O(log leaves); victim: O(1).
//          36 bytes a node, 24 more a leaf
template <class Order>
class RankedLeaves final : public EvictionPolicy {
 public:
  explicit RankedLeaves(std::uint32_t capacity_nodes) : residency_(0) { grow(capacity_nodes); }

  const char* name() const override { return policy_name(Order::kKind); }
  const Residency& residency() const override { return residency_; }
  void grow(std::uint32_t capacity_nodes) override {
    residency_.grow(capacity_nodes);
    leaves_.grow(capacity_nodes);
    if (capacity_nodes > memory_.size()) memory_.resize(capacity_nodes);
  }

  void insert(NodeId node, NodeId parent, std::uint64_t = 0) override {
    residency_.add(node, parent);
    const std::uint32_t depth = parent == kNoNode ? 0 : memory_[parent].depth + 1;
    ++now_;
    memory_[node] = NodeMemory{.stored_at = now_, .used_at = now_, .uses = 1, .depth = depth};
    if (leaves_.contains(parent)) {
      leaves_.replace(parent, node, Order::rank(memory_[node]));
    } else {
      leaves_.push(node, Order::rank(memory_[node]));
    }
  }

  void touch(NodeId node) override {
    CACHALOT_CHECK(residency_.contains(node));
    if constexpr (!Order::kIsTouched) return;
    ++now_;
    for (NodeId at = node; at != kNoNode; at = residency_.parent(at)) {
      memory_[at].used_at = now_;
      if (memory_[at].uses != 0xffffffffu) ++memory_[at].uses;
    }
    if (leaves_.contains(node)) leaves_.update(node, Order::rank(memory_[node]));
  }

  void erase(NodeId node) override {
    CACHALOT_CHECK(residency_.is_leaf(node));
    const NodeId parent = residency_.parent(node);
    residency_.remove(node);
    holds_.forget(node);
    const bool parent_is_bare =
        parent != kNoNode && residency_.is_leaf(parent) && !holds_.is_held(parent);
    if (!leaves_.contains(node)) {
      if (parent_is_bare) leaves_.push(parent, Order::rank(memory_[parent]));
    } else if (parent_is_bare) {
      leaves_.replace(node, parent, Order::rank(memory_[parent]));
    } else {
      leaves_.erase(node);
    }
  }

  NodeId victim(NodeId protect) const override { return leaves_.top_but(protect); }

  void hold(NodeId node) override {
    CACHALOT_CHECK(residency_.contains(node));
    holds_.add(node, residency_.capacity_nodes());
    if (leaves_.contains(node)) leaves_.erase(node);
  }
  void release(NodeId node) override {
    holds_.remove(node);
    if (!holds_.is_held(node) && residency_.is_leaf(node)) {
      leaves_.push(node, Order::rank(memory_[node]));
    }
  }

  bool is_valid() const override;

 private:
  Residency residency_;
  IndexedHeap leaves_;
  base::HugeVector<NodeMemory> memory_;
  Holds holds_;
  std::uint64_t now_ = 0;
};

template <class Order>
bool RankedLeaves<Order>::is_valid() const {
  if (!residency_.is_valid() || !leaves_.is_valid()) return false;
  std::uint32_t free_leaves = 0;
  for (NodeId node = 0; node < residency_.capacity_nodes(); ++node) {
    const bool belongs = residency_.is_leaf(node) && !holds_.is_held(node);
    if (leaves_.contains(node) != belongs) return false;
    if (!belongs) continue;
    ++free_leaves;
    if (leaves_.rank(node) != Order::rank(memory_[node])) return false;
  }
  return free_leaves == leaves_.size();
}

using LeafFifo = RankedLeaves<FifoOrder>;
using LeafLfu = RankedLeaves<LfuOrder>;
using LeafLengthAware = RankedLeaves<LengthAwareOrder>;

}  // namespace cachalot::eviction
