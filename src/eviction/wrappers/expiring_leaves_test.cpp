#include "eviction/wrappers/expiring_leaves.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <algorithm>
#include <map>
#include <tuple>
#include <vector>

namespace cachalot::eviction {
namespace {

ExpiringLeaves make(PolicyKind kind, std::uint32_t nodes) {
  return {make_leaf_policy(kind, nodes), nodes};
}

TEST(ExpiringLeaves, ShowsWhatWasNotUsedForLongestWhateverTheOrder) {
  ExpiringLeaves policy = make(PolicyKind::kFifo, 4);
  policy.set_now(10);
  policy.insert(0, kNoNode, 0);
  policy.insert(1, kNoNode, 1);
  policy.set_now(20);
  policy.touch(0);
  EXPECT_EQ(policy.victim(kNoNode), 0u);  // first in, first out
  EXPECT_EQ(policy.unused_since(10), kNoNode);
  EXPECT_EQ(policy.unused_since(11), 1u);
  policy.erase(1);
  EXPECT_EQ(policy.unused_since(20), kNoNode);
  EXPECT_EQ(policy.unused_since(21), 0u);
}

TEST(ExpiringLeaves, TimeDoesNotGoBack) {
  ExpiringLeaves policy = make(PolicyKind::kLru, 2);
  policy.set_now(10);
  policy.insert(0, kNoNode, 0);
  policy.set_now(3);
  policy.insert(1, kNoNode, 1);
  EXPECT_EQ(policy.unused_since(10), kNoNode);
  EXPECT_TRUE(policy.is_valid());
}

RC_GTEST_PROP(ExpiringLeaves, TheOldestLeafByTheClockComesFirst, ()) {
  constexpr NodeId kNodes = 16;
  ExpiringLeaves policy = make(
      *rc::gen::element(PolicyKind::kLru, PolicyKind::kFifo, PolicyKind::kLengthAware), kNodes);
  std::map<NodeId, std::uint32_t> used_at;
  std::map<NodeId, int> holders;
  const auto use = [&](NodeId node, std::uint32_t now) {
    for (; node != kNoNode; node = policy.residency().parent(node)) used_at[node] = now;
  };
  std::uint32_t now = 1;
  const auto steps = *rc::gen::container<std::vector<std::tuple<int, NodeId, NodeId>>>(
      rc::gen::tuple(rc::gen::inRange(0, 8), rc::gen::inRange<NodeId>(0, kNodes),
                     rc::gen::inRange<NodeId>(0, kNodes)));
  for (const auto& [what, node, other] : steps) {
    if (what == 7) policy.set_now(++now);
    if (!policy.residency().contains(node)) {
      policy.insert(node, policy.residency().contains(other) ? other : kNoNode, node);
      use(node, now);
    } else if (what == 0 && policy.residency().is_leaf(node)) {
      const NodeId parent = policy.residency().parent(node);
      policy.erase(node);
      if (holders[node] > 0) use(parent, now);
      used_at.erase(node);
      holders.erase(node);
    } else if (what == 1) {
      policy.hold(node);
      ++holders[node];
    } else if (what == 2 && holders[node] > 0) {
      policy.release(node);
      --holders[node];
      use(node, now);
    } else {
      policy.touch(node);
      use(node, now);
    }
    RC_ASSERT(policy.is_valid());
    std::uint32_t oldest = 0xffffffffu;
    for (const auto& [n, tick] : used_at) {
      if (policy.residency().is_leaf(n) && holders[n] == 0) oldest = std::min(oldest, tick);
    }
    const NodeId shown = policy.unused_since(0xffffffffu);
    RC_ASSERT((shown == kNoNode) == (oldest == 0xffffffffu));
    if (shown == kNoNode) continue;
    RC_ASSERT(policy.residency().is_leaf(shown) && holders[shown] == 0);
    RC_ASSERT(used_at[shown] == oldest);
    RC_ASSERT(policy.unused_since(oldest) == kNoNode);
  }
}

}  // namespace
}  // namespace cachalot::eviction
