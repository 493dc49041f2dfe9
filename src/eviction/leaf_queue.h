// The evictable leaves of a tree that its caller keeps, in one LeafOrder: the first is evicted next.
//
// The caller has the records (LeafHistory) and decides what a leaf is, so that one record serves a queue
// for each tier, and a split copies a record and moves no queue.
//
// 1. A leaf's rank in the heap is never above the rank of its record.
//
// A use raises a rank, except in the order mru. The queue does not follow each use: it looks at the record
// when the leaf has come to the top, and puts it where it belongs by then. So the uses of a leaf between two
// looks cost one move in all.
#pragma once

#include <cstdint>

#include "eviction/leaf_order.h"
#include "eviction/structure/indexed_heap.h"

namespace cachalot::eviction {

// @threads one at a time
// @cost    push, erase, replace: O(log leaves); first: O(1), and O(log leaves) for each leaf that was used
//          since it was last at the top. 4 bytes a node of the capacity, 24 a leaf
class LeafQueue {
 public:
  explicit LeafQueue(LeafOrder order) : order_(order) {}

  const LeafOrder& order() const { return order_; }
  void grow(std::uint32_t capacity_nodes) { heap_.grow(capacity_nodes); }
  std::uint32_t size() const { return heap_.size(); }
  bool contains(NodeId node) const { return heap_.contains(node); }

  void push(NodeId node, const LeafHistory& leaf) { heap_.push(node, order_.rank(leaf)); }
  void erase(NodeId node) { heap_.erase(node); }

  // Call it after a change of the record of a leaf that may have lowered its rank.
  void lowered(NodeId node, const LeafHistory& leaf) {
    const Rank rank = order_.rank(leaf);
    if (rank < heap_.rank(node)) heap_.update(node, rank);
  }
  // Call it after a use of a leaf.
  void used(NodeId node, const LeafHistory& leaf) {
    if (!order_.is_raised_by_uses()) lowered(node, leaf);
  }

  // The leaf to evict next, or kNoNode. `history_of(node)` is the record of a leaf.
  template <class HistoryOf>
  NodeId first(HistoryOf&& history_of) {
    for (;;) {
      const NodeId node = heap_.top();
      if (node == kNoNode) return kNoNode;
      const Rank rank = order_.rank(history_of(node));
      if (rank == heap_.rank(node)) return node;
      heap_.update(node, rank);
    }
  }

  // Checks the heap, and invariant 1 for `node`, a leaf. O(leaves), O(1).
  bool is_valid() const { return heap_.is_valid(); }
  bool is_valid(NodeId node, const LeafHistory& leaf) const {
    return !(order_.rank(leaf) < heap_.rank(node));
  }

 private:
  LeafOrder order_;
  IndexedHeap heap_;
};

}  // namespace cachalot::eviction
