// Nodes in order of use, oldest first: a doubly linked list inside one array of links.
//
// 1. Following newer() from oldest() visits every linked node once and ends at kNoNode; the
//    links the other way visit them in reverse.
// 2. The links of an unlinked node are kAbsentNode.
//
// 8 bytes a node. Record 0 is the sentinel and node n lies in record n + 1, so that kNoNode, which
// wraps to record 0, is the sentinel's own name: no operation has a special case at the ends.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "base/check.h"
#include "base/huge_allocator.h"
#include "eviction/structure/node.h"

namespace cachalot::eviction {

// @threads one at a time
// @cost    O(1) each, touching the records of the node and of its two neighbours; no allocation
//          except in the constructor and grow()
class LruList {
 public:
  explicit LruList(std::uint32_t capacity_nodes) : links_(1, Links{kNoNode, kNoNode}) {
    grow(capacity_nodes);
  }

  // Makes room for nodes below `capacity_nodes`; never shrinks.
  void grow(std::uint32_t capacity_nodes) {
    CACHALOT_CHECK(capacity_nodes <= kMaxNodes);
    const std::size_t records = std::size_t{capacity_nodes} + 1;
    if (records > links_.size()) links_.resize(records, Links{kAbsentNode, kAbsentNode});
  }

  std::uint32_t capacity_nodes() const { return static_cast<std::uint32_t>(links_.size() - 1); }
  std::uint32_t size() const { return size_; }
  bool contains(NodeId node) const {
    return node < capacity_nodes() && at(node).older != kAbsentNode;
  }

  // kNoNode when empty, and beyond the ends.
  NodeId oldest() const { return links_[0].newer; }
  NodeId newest() const { return links_[0].older; }
  NodeId newer(NodeId node) const { return at(node).newer; }

  // The node must not be linked yet.
  void insert_newest(NodeId node) { insert_older_than(node, kNoNode); }

  // Puts `node` one place on the older side of `newer`, which is linked or kNoNode (the newest end).
  void insert_older_than(NodeId node, NodeId newer) {
    ++size_;
    link(node, newer);
  }

  // These two need a linked node.
  void move_to_newest(NodeId node) {
    unlink(node);
    link(node, kNoNode);
  }
  void erase(NodeId node) {
    unlink(node);
    at(node) = Links{kAbsentNode, kAbsentNode};
    --size_;
  }

  // For callers that hide cache misses over a batch: first all own links, then all neighbours'.
  void prefetch(NodeId node) const { __builtin_prefetch(&at(node), 1); }
  void prefetch_neighbours(NodeId node) const {
    const Links own = at(node);
    __builtin_prefetch(&at(own.older), 1);
    __builtin_prefetch(&at(own.newer), 1);
  }

  // Checks invariants 1 and 2. O(capacity).
  bool is_valid() const;

 private:
  struct Links {
    NodeId older;
    NodeId newer;
  };

  static std::uint32_t record(NodeId node) { return node + 1; }
  Links& at(NodeId node) { return links_[record(node)]; }
  const Links& at(NodeId node) const { return links_[record(node)]; }

  void link(NodeId node, NodeId newer) {
    const NodeId older = at(newer).older;
    at(node) = Links{older, newer};
    at(older).newer = node;
    at(newer).older = node;
  }
  void unlink(NodeId node) {
    const Links own = at(node);
    at(own.older).newer = own.newer;
    at(own.newer).older = own.older;
  }

  base::HugeVector<Links> links_;
  std::uint32_t size_ = 0;
};

}  // namespace cachalot::eviction
