// Several orders over one tree: victims come from the lowest priority that has any, and within it from an
// eviction policy of its own.
//
// 1. A node is in the policy of its tree's priority, and in no other; a tree has one priority.
//
// The caller of insert() decides the priority of a root; its descendants have the same.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "eviction/eviction_policy.h"

namespace cachalot::eviction {

// @threads one at a time
// @cost    that of the policies; victim: O(priorities). Memory of one policy for each priority in use, and
//          9 bytes a node
class PrioritizedLeaves final : public EvictionPolicy {
 public:
  static constexpr std::uint32_t kPriorities = 8;  // 0 goes first

  // `priority_of` is asked for each root that is stored: below kPriorities.
  PrioritizedLeaves(PolicyKind kind, std::uint32_t capacity_nodes,
                    std::function<std::uint32_t(NodeId)> priority_of)
      : kind_(kind), residency_(0), priority_of_(std::move(priority_of)), orders_(kPriorities) {
    grow(capacity_nodes);
  }

  const char* name() const override { return policy_name(kind_); }
  const Residency& residency() const override { return residency_; }
  void grow(std::uint32_t capacity_nodes) override;
  void insert(NodeId node, NodeId parent, std::uint64_t name) override;
  void touch(NodeId node) override { order_of(node).touch(node); }
  void erase(NodeId node) override;
  NodeId victim(NodeId protect) const override;
  void hold(NodeId node) override { order_of(node).hold(node); }
  void release(NodeId node) override { order_of(node).release(node); }
  bool is_valid() const override;

 private:
  EvictionPolicy& order_of(NodeId node) {
    CACHALOT_CHECK(residency_.contains(node));
    return *orders_[priority_[node]];
  }

  PolicyKind kind_;
  Residency residency_;
  std::function<std::uint32_t(NodeId)> priority_of_;
  std::vector<std::unique_ptr<EvictionPolicy>> orders_;  // null: nothing of that priority yet
  std::vector<std::uint8_t> priority_;                   // of a node
};

}  // namespace cachalot::eviction
