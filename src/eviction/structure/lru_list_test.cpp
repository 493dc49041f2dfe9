#include "eviction/structure/lru_list.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <algorithm>
#include <vector>

namespace cachalot::eviction {
namespace {

std::vector<NodeId> from_oldest(const LruList& list) {
  std::vector<NodeId> nodes;
  for (NodeId n = list.oldest(); n != kNoNode; n = list.newer(n)) nodes.push_back(n);
  return nodes;
}

TEST(LruList, IsEmptyAtBothEndsWhenNothingIsLinked) {
  LruList list(0);
  EXPECT_EQ(list.oldest(), kNoNode);
  EXPECT_EQ(list.newest(), kNoNode);
  EXPECT_FALSE(list.contains(0));
  EXPECT_FALSE(list.contains(kNoNode));
  EXPECT_TRUE(list.is_valid());
}

TEST(LruList, KeepsItsOrderWhenItGrows) {
  LruList list(1);
  list.insert_newest(0);
  list.grow(3);
  list.insert_newest(2);
  list.grow(2);  // never shrinks
  EXPECT_EQ(list.capacity_nodes(), 3u);
  EXPECT_EQ(from_oldest(list), (std::vector<NodeId>{0, 2}));
  EXPECT_TRUE(list.is_valid());
}

RC_GTEST_PROP(LruList, AgreesWithAVectorForAnyOperations, ()) {
  constexpr NodeId kNodes = 12;
  LruList list(kNodes);
  std::vector<NodeId> model;
  const auto steps = *rc::gen::container<std::vector<std::pair<int, NodeId>>>(
      rc::gen::pair(rc::gen::inRange(0, 4), rc::gen::inRange<NodeId>(0, kNodes)));
  for (const auto& [what, node] : steps) {
    const auto at = std::find(model.begin(), model.end(), node);
    const bool is_in = at != model.end();
    if (!is_in && what < 2) {
      list.insert_newest(node);
      model.push_back(node);
    } else if (!is_in && !model.empty()) {
      const NodeId pivot = model[node % model.size()];
      list.insert_older_than(node, pivot);
      model.insert(std::find(model.begin(), model.end(), pivot), node);
    } else if (is_in && what == 0) {
      list.erase(node);
      model.erase(at);
    } else if (is_in) {
      list.move_to_newest(node);
      std::rotate(at, at + 1, model.end());
    }
    RC_ASSERT(list.is_valid());
    RC_ASSERT(from_oldest(list) == model);
    RC_ASSERT(list.size() == model.size());
  }
}

}  // namespace
}  // namespace cachalot::eviction
