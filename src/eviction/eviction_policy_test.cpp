// What every policy owes its callers, whatever its order; run against each of them.
#include "eviction/eviction_policy.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "base/rng.h"

namespace cachalot::eviction {
namespace {

class EvictionPolicyTest : public testing::TestWithParam<PolicyKind> {
 protected:
  std::unique_ptr<EvictionPolicy> make(std::uint32_t capacity) {
    return make_leaf_policy(GetParam(), capacity);
  }
};

TEST_P(EvictionPolicyTest, GivesBackTheNameItWasMadeBy) {
  const auto policy = make(1);
  const Result<PolicyKind> kind = parse_policy(policy->name());
  ASSERT_TRUE(kind);
  EXPECT_EQ(*kind, GetParam());
}

TEST_P(EvictionPolicyTest, HasNoVictimWhenEmptyOrWhenAllIsOnTheProtectedPath) {
  const auto policy = make(3);
  EXPECT_EQ(policy->victim(kNoNode), kNoNode);
  policy->insert(0, kNoNode, 0);
  policy->insert(1, 0, 1);
  policy->insert(2, 1, 2);
  EXPECT_EQ(policy->victim(2), kNoNode);
  EXPECT_EQ(policy->victim(kNoNode), 2u);
}

TEST_P(EvictionPolicyTest, AnAbsentNodeProtectsNone) {
  const auto policy = make(3);
  EXPECT_EQ(policy->victim(1), kNoNode);
  policy->insert(0, kNoNode, 0);
  EXPECT_EQ(policy->victim(1), 0u);
  EXPECT_EQ(policy->victim(7), 0u);
}

TEST_P(EvictionPolicyTest, OnlyEverGivesUpLeavesOffTheProtectedPathAndAllOfThemInTheEnd) {
  constexpr std::uint32_t kNodes = 200;
  const auto policy = make(0);
  policy->grow(kNodes);
  base::Rng rng(11);
  for (NodeId n = 0; n < kNodes; ++n) {
    policy->insert(n, n == 0 || rng.below(5) == 0 ? kNoNode : static_cast<NodeId>(rng.below(n)), n);
    policy->touch(static_cast<NodeId>(rng.below(n + 1)));
  }
  for (std::uint32_t left = kNodes; left > 0; --left) {
    NodeId protect = static_cast<NodeId>(rng.below(kNodes));
    if (!policy->residency().contains(protect)) protect = kNoNode;
    NodeId victim = policy->victim(protect);
    ASSERT_TRUE(protect == kNoNode || victim != protect);
    if (victim == kNoNode) victim = policy->victim(kNoNode);
    ASSERT_TRUE(policy->residency().is_leaf(victim));
    policy->erase(victim);
    ASSERT_EQ(policy->residency().size(), left - 1);
    ASSERT_TRUE(policy->is_valid());
  }
}

TEST_P(EvictionPolicyTest, WhatIsHeldAndItsPrefixStay) {
  const auto policy = make(4);
  policy->insert(0, kNoNode, 0);
  policy->insert(1, 0, 1);
  policy->insert(2, kNoNode, 2);
  policy->hold(1);
  policy->hold(1);
  EXPECT_EQ(policy->victim(kNoNode), 2u);
  EXPECT_EQ(policy->victim(2), kNoNode);
  policy->release(1);
  EXPECT_EQ(policy->victim(2), kNoNode);  // held twice
  policy->release(1);
  EXPECT_EQ(policy->victim(2), 1u);
  EXPECT_TRUE(policy->is_valid());
}

TEST_P(EvictionPolicyTest, AHeldLeafMayBeErasedAndItsHoldsGoWithIt) {
  const auto policy = make(3);
  policy->insert(0, kNoNode, 0);
  policy->insert(1, 0, 1);
  policy->hold(0);
  policy->hold(1);
  policy->erase(1);
  EXPECT_EQ(policy->victim(kNoNode), kNoNode);  // 0 is still held
  EXPECT_TRUE(policy->is_valid());
  policy->release(0);
  EXPECT_EQ(policy->victim(kNoNode), 0u);
  policy->insert(1, 0, 1);
  EXPECT_EQ(policy->victim(kNoNode), 1u);
  EXPECT_TRUE(policy->is_valid());
}

// The same calls, nodes numbered in another way: the same victims.
TEST_P(EvictionPolicyTest, DoesNotDependOnHowNodesAreNumbered) {
  constexpr std::uint32_t kNodes = 64;
  const auto policy = make(kNodes), mirror = make(kNodes);
  const auto mirrored = [](NodeId node) { return node == kNoNode ? node : kNodes - 1 - node; };
  base::Rng rng(5);
  for (int step = 0; step < 20000; ++step) {
    const auto node = static_cast<NodeId>(rng.below(kNodes));
    if (!policy->residency().contains(node)) {
      if (policy->residency().size() >= kNodes / 2) {
        const NodeId victim = policy->victim(kNoNode);
        ASSERT_EQ(mirror->victim(kNoNode), mirrored(victim)) << "step " << step;
        policy->erase(victim);
        mirror->erase(mirrored(victim));
      }
      auto parent = static_cast<NodeId>(rng.below(kNodes));
      if (!policy->residency().contains(parent)) parent = kNoNode;
      policy->insert(node, parent, node);
      mirror->insert(mirrored(node), mirrored(parent), node);
    } else {
      policy->touch(node);
      mirror->touch(mirrored(node));
    }
  }
  EXPECT_TRUE(policy->is_valid());
}

INSTANTIATE_TEST_SUITE_P(All, EvictionPolicyTest, testing::ValuesIn(pool_policies()),
                         [](const auto& kind) { return std::string(policy_name(kind.param)); });

}  // namespace
}  // namespace cachalot::eviction
