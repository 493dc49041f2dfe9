#include "eviction/wrappers/quota_leaves.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <map>
#include <tuple>
#include <vector>

namespace cachalot::eviction {
namespace {

// Roots below 10 belong to the first owner, below 20 to the second one, others to one without a quota.
std::uint32_t owner_of(NodeId root) {
  return root < 10 ? 0 : root < 20 ? 1 : QuotaLeaves::kNoQuota;
}

QuotaLeaves make(std::uint64_t first, std::uint64_t second, std::uint32_t nodes = 32) {
  return {make_leaf_policy(PolicyKind::kLru, nodes), nodes, {first, second}, owner_of};
}

TEST(QuotaLeaves, WhatIsHeldStaysAndItsOwnersRestGoes) {
  QuotaLeaves policy = make(0, 5);
  policy.insert(20, kNoNode, 20);
  policy.insert(0, kNoNode, 0);
  policy.insert(3, 0, 3);
  policy.insert(1, kNoNode, 1);
  policy.hold(3);
  EXPECT_EQ(policy.victim(kNoNode), 1u);
  policy.erase(1);
  EXPECT_EQ(policy.victim(kNoNode), 20u);  // its owner has none that may go
  policy.release(3);
  EXPECT_EQ(policy.victim(kNoNode), 3u);
}

// Against a plain description: an order of use for each owner.
RC_GTEST_PROP(QuotaLeaves, TakesTheOldestLeafOfTheOwnerThatIsMostOver, ()) {
  constexpr NodeId kNodes = 24;
  const std::vector<std::uint64_t> quotas = {*rc::gen::inRange<std::uint64_t>(0, 6),
                                             *rc::gen::inRange<std::uint64_t>(0, 6)};
  QuotaLeaves policy(make_leaf_policy(PolicyKind::kLru, kNodes), kNodes, quotas, owner_of);
  const auto order = make_leaf_policy(PolicyKind::kLru, kNodes);
  // An LRU of each owner's nodes alone says which of them is the oldest leaf.
  std::vector<std::unique_ptr<EvictionPolicy>> own;
  for (int i = 0; i < 2; ++i) own.push_back(make_leaf_policy(PolicyKind::kLru, kNodes));
  std::map<NodeId, std::uint32_t> owners;
  const auto steps = *rc::gen::container<std::vector<std::tuple<int, NodeId, NodeId>>>(
      rc::gen::tuple(rc::gen::inRange(0, 3), rc::gen::inRange<NodeId>(0, kNodes),
                     rc::gen::inRange<NodeId>(0, kNodes)));
  for (const auto& [what, node, other] : steps) {
    if (!order->residency().contains(node)) {
      const NodeId parent = order->residency().contains(other) ? other : kNoNode;
      owners[node] = parent == kNoNode ? owner_of(node) : owners[parent];
      policy.insert(node, parent, node);
      order->insert(node, parent, node);
      if (owners[node] < 2) own[owners[node]]->insert(node, parent, node);
    } else if (what == 0 && order->residency().is_leaf(node)) {
      policy.erase(node);
      order->erase(node);
      if (owners[node] < 2) own[owners[node]]->erase(node);
    } else {
      policy.touch(node);
      order->touch(node);
      if (owners[node] < 2) own[owners[node]]->touch(node);
    }
    RC_ASSERT(policy.is_valid());
    NodeId expected = kNoNode;
    std::uint64_t most = 0;
    for (std::uint32_t owner = 0; owner < 2; ++owner) {
      const std::uint64_t size = own[owner]->residency().size();
      const NodeId oldest = own[owner]->victim(other);
      if (size <= quotas[owner] + most || oldest == kNoNode) continue;
      most = size - quotas[owner];
      expected = oldest;
    }
    RC_ASSERT(policy.victim(other) == (expected != kNoNode ? expected : order->victim(other)));
  }
}

}  // namespace
}  // namespace cachalot::eviction
