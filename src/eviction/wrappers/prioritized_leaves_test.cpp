#include "eviction/wrappers/prioritized_leaves.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <algorithm>
#include <tuple>
#include <vector>

namespace cachalot::eviction {
namespace {

// Nodes from 8 on are of priority 1, from 16 on of priority 2.
std::uint32_t by_number(NodeId node) {
  return node / 8;
}

TEST(PrioritizedLeaves, WhatIsStoredBelowARootHasItsPriority) {
  PrioritizedLeaves policy(PolicyKind::kLru, 24, by_number);
  policy.insert(8, kNoNode, 8);
  policy.insert(0, 8, 0);
  policy.insert(1, kNoNode, 1);
  policy.touch(1);
  EXPECT_EQ(policy.victim(kNoNode), 1u);
  EXPECT_EQ(policy.victim(1), 0u);  // 1 is protected, and 0 is the leaf of 8's tree
  EXPECT_TRUE(policy.is_valid());
}

TEST(PrioritizedLeaves, IfAllOfAPriorityIsHeldTheNextOneGivesWay) {
  PrioritizedLeaves policy(PolicyKind::kLfu, 24, by_number);
  policy.insert(0, kNoNode, 0);
  policy.insert(8, kNoNode, 8);
  policy.hold(0);
  EXPECT_EQ(policy.victim(kNoNode), 8u);
  policy.release(0);
  EXPECT_EQ(policy.victim(kNoNode), 0u);
}

RC_GTEST_PROP(PrioritizedLeaves, GivesUpTheVictimsOfEachPrioritysOwnPolicy, ()) {
  constexpr NodeId kNodes = 24;
  const auto kind = *rc::gen::element(PolicyKind::kLru, PolicyKind::kLfu, PolicyKind::kFifo);
  PrioritizedLeaves policy(kind, kNodes, by_number);
  std::vector<std::unique_ptr<EvictionPolicy>> apart;
  for (int i = 0; i < 3; ++i) apart.push_back(make_leaf_policy(kind, kNodes));
  const auto steps = *rc::gen::container<std::vector<std::tuple<bool, NodeId, NodeId>>>(
      rc::gen::tuple(rc::gen::arbitrary<bool>(), rc::gen::inRange<NodeId>(0, kNodes),
                     rc::gen::inRange<NodeId>(0, 8)));
  for (const auto& [goes, node, place] : steps) {
    const NodeId other = node / 8 * 8 + place;  // of the same priority
    EvictionPolicy& own = *apart[by_number(node)];
    if (!own.residency().contains(node)) {
      const NodeId parent = own.residency().contains(other) ? other : kNoNode;
      policy.insert(node, parent, node);
      own.insert(node, parent, node);
    } else if (goes && own.residency().is_leaf(node)) {
      policy.erase(node);
      own.erase(node);
    } else {
      policy.touch(node);
      own.touch(node);
    }
    RC_ASSERT(policy.is_valid());
    const NodeId protect = own.residency().contains(other) ? other : kNoNode;
    NodeId expected = kNoNode;
    for (std::uint32_t p = 0; p < 3 && expected == kNoNode; ++p) {
      expected = apart[p]->victim(p == by_number(node) ? protect : kNoNode);
    }
    RC_ASSERT(policy.victim(protect) == expected);
  }
}

}  // namespace
}  // namespace cachalot::eviction
