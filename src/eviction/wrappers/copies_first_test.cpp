#include "eviction/wrappers/copies_first.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <map>
#include <tuple>
#include <vector>

namespace cachalot::eviction {
namespace {

CopiesFirst make(std::uint32_t nodes) {
  return {make_leaf_policy(PolicyKind::kLru, nodes), nodes};
}

void insert_copy(CopiesFirst& policy, NodeId node, NodeId parent) {
  policy.insert(node, parent, node);
  policy.mark_copy(node);
}

TEST(CopiesFirst, AHeldCopyStays) {
  CopiesFirst policy = make(4);
  insert_copy(policy, 0, kNoNode);
  policy.touch(0);
  policy.insert(1, kNoNode, 1);
  policy.hold(0);
  EXPECT_EQ(policy.victim(kNoNode), 1u);
  policy.release(0);
  EXPECT_EQ(policy.victim(kNoNode), 0u);
}

TEST(CopiesFirst, ACopyIsSparedUntilASixteenthHasComeAfterItsUse) {
  constexpr NodeId kOwn = 64;
  CopiesFirst policy = make(kOwn + 16);
  for (NodeId node = 0; node < kOwn - 1; ++node) policy.insert(node, kNoNode, node);
  insert_copy(policy, kOwn, kNoNode);
  policy.touch(kOwn);
  for (NodeId node = kOwn + 1; node < kOwn + 5; ++node) {
    const NodeId oldest = node - kOwn - 1;
    EXPECT_EQ(policy.victim(kNoNode), oldest) << node;
    policy.erase(oldest);
    policy.insert(node, kNoNode, node);
  }
  EXPECT_EQ(policy.victim(kNoNode), kOwn);
}

// Against a plain description: which nodes are copies, and how often each was used.
RC_GTEST_PROP(CopiesFirst, GivesUpUsedCopiesThenWhatItsOrderSays, ()) {
  constexpr NodeId kNodes = 12;  // fewer than 16: none is spared
  CopiesFirst policy = make(kNodes);
  const auto order = make_leaf_policy(PolicyKind::kLru, kNodes);
  std::map<NodeId, int> uses;  // of each copy
  const auto steps = *rc::gen::container<std::vector<std::tuple<int, NodeId, NodeId, bool>>>(
      rc::gen::tuple(rc::gen::inRange(0, 3), rc::gen::inRange<NodeId>(0, kNodes),
                     rc::gen::inRange<NodeId>(0, kNodes), rc::gen::arbitrary<bool>()));
  for (const auto& [what, node, other, is_copy] : steps) {
    if (!order->residency().contains(node)) {
      const NodeId parent = order->residency().contains(other) ? other : kNoNode;
      policy.insert(node, parent, node);
      order->insert(node, parent, node);
      if (is_copy) policy.mark_copy(node);
      if (is_copy) uses[node] = 0;
    } else if (what == 0 && order->residency().is_leaf(node)) {
      policy.erase(node);
      order->erase(node);
      uses.erase(node);
    } else {
      policy.touch(node);
      order->touch(node);
      for (NodeId at = node; at != kNoNode; at = order->residency().parent(at)) {
        if (uses.contains(at) && ++uses[at] == 2) uses.erase(at);
      }
    }
    RC_ASSERT(policy.is_valid());
    RC_ASSERT(policy.copies() == uses.size());
    bool is_used_leaf = false;
    for (const auto& [copy, times] : uses) {
      is_used_leaf |= times == 1 && copy != other && order->residency().is_leaf(copy);
    }
    const NodeId victim = policy.victim(other);
    if (is_used_leaf) {
      RC_ASSERT(uses.contains(victim) && uses[victim] == 1 && victim != other);
      RC_ASSERT(order->residency().is_leaf(victim));
    } else {
      RC_ASSERT(victim == order->victim(other));
    }
  }
}

}  // namespace
}  // namespace cachalot::eviction
