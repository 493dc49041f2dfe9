// Exact least-recently-used eviction of leaves in constant time: one list of all resident nodes in
// which a parent always stands on the newer side of its children.
//
// 1. The list holds the resident nodes but for those that are held or have a held node below them,
//    each once.
// 2. A parent is newer than each of its children that are in the list.
//
// By 2 the oldest node has no children: it is the least recently used leaf, without a heap or a
// list of leaves. touch() keeps 2 by moving a path tail first and root last; insert() puts a child
// one place older than its parent, so it shares its parent's age.
//
// victim(protect): walk from the oldest node while it is `protect` or a non-leaf. Say the nodes
// passed so far are protect and its next i ancestors. If the node that follows has a child, that
// child is older, hence one of those passed, and as the parents of all but the last of them have
// been passed too, the node is the parent of the last one. So the walk goes up protect's own path,
// one comparison a step, and the first node off it is the oldest leaf that may go.
//
// hold(): a held node and its ancestors leave the list, so that no walk meets them, and come back as
// just used when the last hold below them ends. They cannot go meanwhile: the held node by decree,
// its ancestors because they have a child. So 2 and the argument above are about what is left.
//
// 16 bytes a node: 8 for the list, 8 for the Residency; 4 more once something was held.
#pragma once

#include <cstdint>

#include "eviction/eviction_policy.h"
#include "eviction/holds.h"
#include "eviction/residency.h"
#include "eviction/structure/lru_list.h"

namespace cachalot::eviction {

// Calls through a LeafLru (not an EvictionPolicy) are inlined.
//
// @threads one at a time
// @cost    touch: O(depth), about three cache lines a node of the path; the rest O(1). A batch
//          hides the misses: prefetch() all, then prefetch_neighbours() all, then touch() all.
class LeafLru final : public EvictionPolicy {
 public:
  explicit LeafLru(std::uint32_t capacity_nodes)
      : residency_(capacity_nodes), list_(capacity_nodes) {}

  const char* name() const override { return "lru"; }
  const Residency& residency() const override { return residency_; }
  void grow(std::uint32_t capacity_nodes) override {
    residency_.grow(capacity_nodes);
    list_.grow(capacity_nodes);
  }

  void insert(NodeId node, NodeId parent, std::uint64_t = 0) override {
    residency_.add(node, parent);
    // kNoNode: the newest end
    list_.insert_older_than(node, holds_.is_held(parent) ? kNoNode : parent);
  }

  void touch(NodeId node) override {
    do {
      const NodeId parent = residency_.parent(node);
      if (holds_.is_held(node)) [[unlikely]]
        return;  // so are all above it
      list_.move_to_newest(node);
      node = parent;
    } while (node != kNoNode);
  }

  void erase(NodeId node) override {
    if (const std::uint32_t holders = holds_.count(node); holders != 0) end_holds(node, holders);
    residency_.remove(node);
    list_.erase(node);
  }

  // Also true for the prefix of what is held.
  bool is_held(NodeId node) const { return holds_.is_held(node); }
  void hold(NodeId node) override;
  void release(NodeId node) override { end_holds(node, 1); }

  NodeId victim(NodeId protect) const override {
    NodeId node = list_.oldest();
    while (node != kNoNode && node == protect) {
      protect = residency_.parent(protect);
      node = list_.newer(node);
    }
    return node;
  }

  // For any node below the capacity, resident or not; prefetch() some while before the other.
  void prefetch(NodeId node) const {
    residency_.prefetch(node);
    list_.prefetch(node);
  }
  void prefetch_neighbours(NodeId node) const { list_.prefetch_neighbours(node); }

  // From the least recently used to the most: for tests and reports.
  NodeId oldest() const { return list_.oldest(); }
  NodeId newer(NodeId node) const { return list_.newer(node); }

  // Checks invariants 1 and 2 and those of the parts. O(capacity), allocates.
  bool is_valid() const override;

 private:
  void end_holds(NodeId node, std::uint32_t holders);

  Residency residency_;
  LruList list_;
  Holds holds_;  // of a node and of all below it
};

}  // namespace cachalot::eviction
