// An eviction policy whose nodes also grow old: beside the policy's own order, it knows when each node was
// last used, and which leaf has not been used for longest.
//
// Time is told from outside, in ticks that never go back; within one tick all uses are one, so that a path
// that is used often is walked once a tick.
//
// 1. The nodes stand in a LeafLru, too; the time of last use of a node is that of the latest use of any
//    node below it, so that it never is before its children's.
#pragma once

#include <cstdint>
#include <memory>

#include "base/huge_allocator.h"
#include "eviction/eviction_policy.h"
#include "eviction/leaf_lru.h"

namespace cachalot::eviction {

// @threads one at a time
// @cost    beside the policy's: O(depth) for the first use of a path in a tick; 20 bytes a node
class ExpiringLeaves final : public EvictionPolicy {
 public:
  ExpiringLeaves(std::unique_ptr<EvictionPolicy> order, std::uint32_t capacity_nodes);

  // The present: later uses and stores happen at this tick.
  void set_now(std::uint32_t tick) {
    if (tick > now_) now_ = tick;
  }
  // A leaf that is not held and was last used before `tick`: the one unused for longest; kNoNode if
  // there is none. Changes nothing.
  NodeId unused_since(std::uint32_t tick) const;

  const char* name() const override { return order_->name(); }
  const Residency& residency() const override { return order_->residency(); }
  void grow(std::uint32_t capacity_nodes) override;
  void insert(NodeId node, NodeId parent, std::uint64_t name) override;
  void touch(NodeId node) override;
  void erase(NodeId node) override;
  NodeId victim(NodeId protect) const override { return order_->victim(protect); }
  void hold(NodeId node) override;
  // A use of the whole prefix; so is the end of a hold by erase().
  void release(NodeId node) override;
  bool is_valid() const override;

 private:
  void use(NodeId node);

  std::unique_ptr<EvictionPolicy> order_;
  LeafLru ages_;
  base::HugeVector<std::uint32_t> used_at_;
  std::uint32_t now_ = 1;  // 0: never
};

}  // namespace cachalot::eviction
