#include "eviction/leaf_queue.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <map>
#include <tuple>
#include <vector>

namespace cachalot::eviction {
namespace {

TEST(LeafQueue, AUseMovesALeafOnlyWhenItComesToTheTop) {
  std::vector<LeafHistory> records(2);
  const auto record = [&](NodeId node) -> const LeafHistory& { return records[node]; };
  LeafQueue queue(LeafOrder{});
  queue.grow(2);
  for (NodeId node = 0; node < 2; ++node) {
    records[node].used_at = node + 1;
    queue.push(node, records[node]);
  }
  records[0].used_at = 9;
  queue.used(0, records[0]);
  EXPECT_TRUE(queue.is_valid(0, records[0]));
  EXPECT_EQ(queue.first(record), 1u);
  queue.erase(1);
  EXPECT_EQ(queue.first(record), 0u);
  queue.erase(0);
  EXPECT_EQ(queue.first(record), kNoNode);
}

// Against a search over all leaves, in every order.
RC_GTEST_PROP(LeafQueue, ShowsTheLeafOfTheLowestRankInEveryOrder, ()) {
  constexpr NodeId kNodes = 16;
  const LeafOrder order = *parse_leaf_order(*rc::gen::element<std::string>(
      "lru", "lfu", "fifo", "length_aware", "slru", "priority", "mru", "filo"));
  LeafQueue queue(order);
  queue.grow(kNodes);
  std::map<NodeId, LeafHistory> leaves;
  std::uint64_t now = 0;
  const auto steps = *rc::gen::container<std::vector<std::tuple<int, NodeId, int>>>(rc::gen::tuple(
      rc::gen::inRange(0, 4), rc::gen::inRange<NodeId>(0, kNodes), rc::gen::inRange(-3, 4)));
  for (const auto& [what, node, number] : steps) {
    ++now;
    if (leaves.count(node) == 0) {
      LeafHistory& leaf = leaves[node];
      leaf.stored_at = leaf.used_at = now;
      leaf.uses = 1;
      leaf.depth = static_cast<std::uint32_t>(number + 3);
      leaf.priority = number;
      queue.push(node, leaf);
    } else if (what == 0) {
      queue.erase(node);
      leaves.erase(node);
    } else if (what == 1) {  // as by a split
      leaves[node].depth += 2;
      queue.lowered(node, leaves[node]);
    } else {
      leaves[node].used_at = now;
      ++leaves[node].uses;
      if (number > leaves[node].priority) leaves[node].priority = number;
      queue.used(node, leaves[node]);
    }
    RC_ASSERT(queue.is_valid());
    RC_ASSERT(queue.size() == leaves.size());
    NodeId lowest = kNoNode;
    for (const auto& [other, leaf] : leaves) {
      RC_ASSERT(queue.is_valid(other, leaf));
      if (lowest == kNoNode || order.rank(leaf) < order.rank(leaves[lowest])) lowest = other;
    }
    RC_ASSERT(queue.first([&](NodeId n) -> const LeafHistory& { return leaves[n]; }) == lowest);
  }
}

}  // namespace
}  // namespace cachalot::eviction
