#include "eviction/residency.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <map>
#include <utility>
#include <vector>

namespace cachalot::eviction {
namespace {

TEST(Residency, ANodeIsALeafUntilItHasAChild) {
  Residency tree(4);
  tree.add(0, kNoNode);
  EXPECT_TRUE(tree.is_leaf(0));
  tree.add(1, 0);
  tree.add(2, 0);
  EXPECT_FALSE(tree.is_leaf(0));
  EXPECT_EQ(tree.children(0), 2u);
  EXPECT_EQ(tree.parent(2), 0u);
  EXPECT_EQ(tree.parent(0), kNoNode);
  tree.remove(1);
  tree.remove(2);
  EXPECT_TRUE(tree.is_leaf(0));
  EXPECT_EQ(tree.size(), 1u);
}

TEST(Residency, AnAbsentNodeIsNeitherResidentNorALeaf) {
  Residency tree(2);
  EXPECT_FALSE(tree.contains(1));
  EXPECT_FALSE(tree.is_leaf(1));
  EXPECT_FALSE(tree.contains(2));
  EXPECT_FALSE(tree.contains(kNoNode));
}

TEST(ResidencyDeathTest, RefusesToLoseTheParentOfAResidentNode) {
  Residency tree(2);
  tree.add(0, kNoNode);
  tree.add(1, 0);
  EXPECT_DEATH(tree.remove(0), "is_leaf");
}

TEST(ResidencyDeathTest, RefusesAnAbsentParentAndANodeTwice) {
  Residency tree(2);
  EXPECT_DEATH(tree.add(0, 1), "contains\\(parent\\)");
  EXPECT_DEATH(tree.add(2, kNoNode), "bug");
  tree.add(0, kNoNode);
  EXPECT_DEATH(tree.add(0, kNoNode), "bug");
  EXPECT_DEATH((void)tree.parent(1), "contains");
}

RC_GTEST_PROP(Residency, CountsTheChildrenOfEveryTree, ()) {
  constexpr NodeId kNodes = 16;
  Residency tree(kNodes);
  std::map<NodeId, NodeId> parent_of;
  const auto steps = *rc::gen::container<std::vector<std::pair<NodeId, NodeId>>>(
      rc::gen::pair(rc::gen::inRange<NodeId>(0, kNodes), rc::gen::inRange<NodeId>(0, kNodes)));
  for (const auto& [node, other] : steps) {
    if (parent_of.count(node) == 0) {
      const NodeId parent = parent_of.count(other) != 0 ? other : kNoNode;
      tree.add(node, parent);
      parent_of[node] = parent;
    } else if (tree.is_leaf(node)) {
      tree.remove(node);
      parent_of.erase(node);
    }
    RC_ASSERT(tree.is_valid());
    RC_ASSERT(tree.size() == parent_of.size());
    std::map<NodeId, std::uint32_t> children;
    for (const auto& [child, parent] : parent_of) ++children[parent];
    for (const auto& [resident, parent] : parent_of) {
      RC_ASSERT(tree.parent(resident) == parent);
      RC_ASSERT(tree.children(resident) == children[resident]);
    }
  }
}

}  // namespace
}  // namespace cachalot::eviction
