#include "tier/radix/tiered_forest.h"

#include <gtest/gtest.h>

#include <vector>

namespace cachalot::tier {
namespace {

constexpr eviction::LeafOrder kLru;

TEST(TieredForest, AChainOfAMillionNodesNeedsNoStack) {
  constexpr std::uint32_t kNodes = 1'000'000;
  TieredForest nodes(1, kLru, kLru);
  const Token token = 7;
  const Slot slot = 3;
  NodeId last = nodes.find_or_add_root({.tokens = {&token, 1}});
  for (std::uint32_t i = 0; i < kNodes; ++i) {
    last = nodes.add_leaf(last, {&token, 1}, Tier::kDevice, {&slot, 1}, {}, {});
  }
  nodes.lock(Tier::kDevice, last);
  EXPECT_EQ(nodes.use(Tier::kDevice).protected_pages, kNodes);
  EXPECT_EQ(nodes.first_leaf(Tier::kDevice), kNoNode);
  nodes.unlock(Tier::kDevice, last);
  EXPECT_TRUE(nodes.is_valid());
  std::vector<NodeId> path;
  nodes.forest().append_path(last, path);
  EXPECT_EQ(path.size(), kNodes);
  FreedSlots freed;
  for (NodeId leaf; (leaf = nodes.first_leaf(Tier::kDevice)) != kNoNode;) nodes.remove(leaf, freed);
  EXPECT_EQ(freed.device.size(), kNodes);
  EXPECT_EQ(nodes.forest().size(), 0u);
  EXPECT_TRUE(nodes.is_valid());
}

TEST(TieredForestDeathTest, RulesOfTheTiersAreChecked) {
  TieredForest nodes(1, kLru, kLru);
  const Token token = 7;
  const Slot slot = 3;
  const NodeId root = nodes.find_or_add_root({.tokens = {&token, 1}});
  const NodeId outer = nodes.add_leaf(root, {&token, 1}, Tier::kDevice, {&slot, 1}, {}, {});
  const NodeId inner = nodes.add_leaf(outer, {&token, 1}, Tier::kDevice, {&slot, 1}, {}, {});
  FreedSlots freed;
  EXPECT_DEATH(nodes.put(Tier::kDevice, inner, {&slot, 1}), "is_in");
  EXPECT_DEATH(nodes.drop(Tier::kDevice, inner, freed), "is_in");
  EXPECT_DEATH(nodes.lock(Tier::kHost, inner), "is_in");
  EXPECT_DEATH(nodes.unlock(Tier::kDevice, inner), "is_locked");
  nodes.lock(Tier::kDevice, inner);
  EXPECT_DEATH(nodes.remove(inner, freed), "is_locked");
}

}  // namespace
}  // namespace cachalot::tier
