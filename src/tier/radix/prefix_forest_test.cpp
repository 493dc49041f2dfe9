#include "tier/radix/prefix_forest.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace cachalot::tier {
namespace {

TEST(PrefixForest, AChildIsFoundByItsWholeFirstPage) {
  PrefixForest forest(4);
  const std::vector<Token> one = {1, 2, 3, 4, 5, 6, 7, 8}, other = {1, 2, 3, 9},
                           absent = {1, 2, 3, 5};
  const NodeId root = forest.find_or_add_root({.tokens = one});
  const NodeId first = forest.add_child(root, one);
  EXPECT_EQ(forest.find_child(root, absent.data()), kNoNode);
  const NodeId second = forest.add_child(root, other);
  EXPECT_EQ(forest.find_child(root, one.data()), first);
  EXPECT_EQ(forest.find_child(root, other.data()), second);
  EXPECT_EQ(forest.find_child(root, absent.data()), kNoNode);
  EXPECT_TRUE(forest.is_valid());
}

TEST(PrefixForest, EqualPagesBelowDifferentParentsAreDifferentChildren) {
  PrefixForest forest(1);
  const std::vector<Token> page = {7};
  const NodeId root = forest.find_or_add_root({.tokens = page});
  const NodeId outer = forest.add_child(root, page);
  const NodeId inner = forest.add_child(outer, page);
  const std::vector<Token> sibling = {8};
  forest.add_child(root, sibling);
  forest.add_child(outer, sibling);
  EXPECT_EQ(forest.find_child(root, page.data()), outer);
  EXPECT_EQ(forest.find_child(outer, page.data()), inner);
  EXPECT_TRUE(forest.is_valid());
}

TEST(PrefixForest, ASplitPutsANewNodeAboveAndKeepsTheIdBelow) {
  PrefixForest forest(2);
  const std::vector<Token> tokens = {1, 2, 3, 4, 5, 6};
  const NodeId root = forest.find_or_add_root({.tokens = tokens});
  const NodeId lower = forest.add_child(root, tokens);
  const NodeId upper = forest.split(lower, 1);
  EXPECT_EQ(forest.find_child(root, tokens.data()), upper);
  EXPECT_EQ(forest.find_child(upper, tokens.data() + 2), lower);
  EXPECT_EQ(forest[upper].pages, 1u);
  EXPECT_EQ(forest[lower].pages, 2u);
  EXPECT_EQ(forest[lower].history.depth, 1u);
  EXPECT_TRUE(forest.is_valid());
}

TEST(PrefixForest, ARootIsRemovedWithItsLastChild) {
  PrefixForest forest(1);
  const std::vector<Token> tokens = {1};
  const RadixKey key{.tokens = tokens, .extra = "salt"};
  const NodeId node = forest.add_child(forest.find_or_add_root(key), tokens);
  EXPECT_EQ(forest.extra_of(node), "salt");
  forest.remove(node);
  EXPECT_EQ(forest.find_root(key), kNoNode);
  EXPECT_EQ(forest.size(), 0u);
  EXPECT_TRUE(forest.is_valid());
}

TEST(PrefixForest, ANodeOfManyChildrenFindsEachOfThem) {
  PrefixForest forest(1);
  const std::vector<Token> first = {0};
  const NodeId root = forest.find_or_add_root({.tokens = first});
  std::vector<NodeId> children;
  for (Token t = 0; t < 5000; ++t)
    children.push_back(forest.add_child(root, std::vector<Token>{t}));
  for (Token t = 0; t < 5000; t += 2) forest.remove(children[t]);
  for (Token t = 0; t < 5000; ++t) {
    EXPECT_EQ(forest.find_child(root, &t), t % 2 == 0 ? kNoNode : children[t]);
  }
  EXPECT_TRUE(forest.is_valid());
}

TEST(PrefixForestDeathTest, ANodeWithChildrenIsNotRemoved) {
  PrefixForest forest(1);
  const std::vector<Token> tokens = {1, 2};
  const NodeId lower = forest.add_child(forest.find_or_add_root({.tokens = tokens}), tokens);
  const NodeId upper = forest.split(lower, 1);
  EXPECT_DEATH(forest.remove(upper), "children");
  EXPECT_DEATH((void)forest.split(lower, 1), "pages");
}

}  // namespace
}  // namespace cachalot::tier
