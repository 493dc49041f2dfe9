// Which nodes are resident and how they hang together: for each its parent and how many children.
//
// 1. The parent of a resident node is resident, or kNoNode (a root).
// 2. children(n) is the number of resident nodes whose parent is n.
// 3. Only leaves leave, so 1 needs no search: a chain is dropped from its tail.
//
// 8 bytes a node. What is removed and in which order is the policy's business, not this class's.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "base/check.h"
#include "base/huge_allocator.h"
#include "eviction/structure/node.h"

namespace cachalot::eviction {

// @threads one at a time
// @cost    O(1) each; no allocation except in the constructor and grow()
class Residency {
 public:
  explicit Residency(std::uint32_t capacity_nodes) { grow(capacity_nodes); }

  // Makes room for nodes below `capacity_nodes`; never shrinks.
  void grow(std::uint32_t capacity_nodes) {
    CACHALOT_CHECK(capacity_nodes <= kMaxNodes);
    if (capacity_nodes > nodes_.size()) nodes_.resize(capacity_nodes, Node{kAbsentNode, 0});
  }

  std::uint32_t capacity_nodes() const { return static_cast<std::uint32_t>(nodes_.size()); }
  std::uint32_t size() const { return size_; }
  bool contains(NodeId node) const {
    return node < nodes_.size() && nodes_[node].parent != kAbsentNode;
  }

  // `node` must be absent; `parent` resident or kNoNode.
  void add(NodeId node, NodeId parent) {
    CACHALOT_CHECK(node < nodes_.size() && nodes_[node].parent == kAbsentNode);
    if (parent != kNoNode) {
      CACHALOT_CHECK(contains(parent));
      ++nodes_[parent].children;
    }
    nodes_[node].parent = parent;
    ++size_;
  }

  // `node` must be a resident leaf.
  void remove(NodeId node) {
    CACHALOT_CHECK(is_leaf(node));
    const NodeId parent = nodes_[node].parent;
    if (parent != kNoNode) --nodes_[parent].children;
    nodes_[node].parent = kAbsentNode;
    --size_;
  }

  // False for an absent node.
  bool is_leaf(NodeId node) const { return contains(node) && nodes_[node].children == 0; }

  // These two need a resident node. The parent of a root is kNoNode.
  NodeId parent(NodeId node) const {
    CACHALOT_CHECK(contains(node));
    return nodes_[node].parent;
  }
  std::uint32_t children(NodeId node) const {
    CACHALOT_CHECK(contains(node));
    return nodes_[node].children;
  }

  void prefetch(NodeId node) const { __builtin_prefetch(nodes_.data() + node); }

  // Checks invariants 1 and 2, and that no chain of parents is a circle. O(capacity).
  bool is_valid() const;

 private:
  struct Node {
    NodeId parent;
    std::uint32_t children;
  };

  base::HugeVector<Node> nodes_;
  std::uint32_t size_ = 0;
};

}  // namespace cachalot::eviction
