#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "tier/radix/radix_test_tree.h"
#include "tier/radix/radix_tree.h"

namespace cachalot::tier {
namespace {

// Case 16.
TEST(RadixEviction, ALockMovesPagesFromEvictableToProtected) {
  TestTree t(1);
  const NodeId node = t.insert({1, 2, 3}).node;
  t.tree.lock(Tier::kDevice, node);
  EXPECT_EQ(t.tree.use(Tier::kDevice).protected_pages, 3u);
  EXPECT_EQ(t.tree.use(Tier::kDevice).evictable_pages(), 0u);
  t.tree.lock(Tier::kDevice, node);
  t.tree.unlock(Tier::kDevice, node);
  EXPECT_EQ(t.tree.use(Tier::kDevice).protected_pages, 3u);  // locked twice
  t.tree.unlock(Tier::kDevice, node);
  EXPECT_EQ(t.tree.use(Tier::kDevice).protected_pages, 0u);
  EXPECT_EQ(t.tree.use(Tier::kDevice).evictable_pages(), 3u);
  t.tree.lock(Tier::kDevice, kNoNode);
  t.tree.unlock(Tier::kDevice, kNoNode);
  EXPECT_EQ(t.tree.held_locks(), 0u);
  EXPECT_TRUE(t.is_valid());
}

// Case 17.
TEST(RadixEviction, WhatIsLockedStaysAndTheRestGoes) {
  TestTree t(1);
  const NodeId a = t.insert({1, 2, 3}).node;
  t.insert({4, 5, 6});
  t.tree.lock(Tier::kDevice, a);
  EXPECT_EQ(t.evict(Tier::kDevice, 100), 3u);
  EXPECT_EQ(t.peek({1, 2, 3}).device_pages, 3u);
  EXPECT_EQ(t.peek({4, 5, 6}).device_pages, 0u);
  t.tree.unlock(Tier::kDevice, a);
  EXPECT_EQ(t.evict(Tier::kDevice, 100), 3u);
  EXPECT_TRUE(t.is_valid());
}

// Case 18.
TEST(RadixEviction, ReportsWhatLeft) {
  TestTree t(1);
  EXPECT_EQ(t.evict(Tier::kDevice, 10), 0u);
  for (Token first : {10, 20, 30, 40}) t.insert({first, first + 1, first + 2});
  const std::uint64_t half = t.evict(Tier::kDevice, 6);
  EXPECT_GE(half, 6u);
  EXPECT_EQ(t.pages(Tier::kDevice), 12 - half);
  EXPECT_EQ(t.evict(Tier::kDevice, 100), 12 - half);
  EXPECT_EQ(t.pages(Tier::kDevice), 0u);
  EXPECT_EQ(t.evict(Tier::kDevice, 1), 0u);
}

// Case 18.
TEST(RadixEviction, AChainGoesFromItsEnd) {
  TestTree t(1);
  t.insert({1});
  t.insert({1, 2});
  t.insert({1, 2, 3});
  EXPECT_EQ(t.evict(Tier::kDevice, 1), 1u);
  EXPECT_EQ(t.peek({1, 2, 3}).device_pages, 2u);
  EXPECT_EQ(t.evict(Tier::kDevice, 100), 2u);
  EXPECT_EQ(t.tree.forest().size(), 0u);
  EXPECT_TRUE(t.is_valid());
}

// Case 19.
TEST(RadixEviction, ByDefaultTheLeastRecentlyUsedLeafGoes) {
  TestTree t(1);
  t.insert({1, 2});
  t.insert({3, 4});
  t.insert({5, 6});
  t.match({1, 2});
  EXPECT_EQ(t.evict(Tier::kDevice, 2), 2u);
  EXPECT_EQ(t.peek({3, 4}).device_pages, 0u);
  EXPECT_EQ(t.peek({1, 2}).device_pages, 2u);
  EXPECT_EQ(t.peek({5, 6}).device_pages, 2u);
}

// Case 19.
TEST(RadixEviction, TheLowestPriorityGoesFirst) {
  TestTree t(1, "priority");
  t.insert({1, 2}, {.priority = 10});
  t.insert({3, 4}, {.priority = 0});
  t.match({3, 4});
  EXPECT_EQ(t.evict(Tier::kDevice, 1), 2u);
  EXPECT_EQ(t.peek({1, 2}).device_pages, 2u);
  EXPECT_EQ(t.peek({3, 4}).device_pages, 0u);
}

TEST(RadixEviction, AnInsertRaisesThePriorityOfItsPathOnly) {
  TestTree t(1, "priority");
  t.insert({1, 2}, {.priority = 1});
  t.insert({5, 6}, {.priority = 3});
  t.insert({1, 2}, {.priority = 5});
  t.insert({1, 2}, {.priority = 0});  // lowers nothing
  EXPECT_EQ(t.evict(Tier::kDevice, 1), 2u);
  EXPECT_EQ(t.peek({1, 2}).device_pages, 2u);
  EXPECT_TRUE(t.is_valid());
}

// Case 19.
TEST(RadixEviction, ALockedBranchKeepsItsBase) {
  TestTree t(1);
  t.insert({1, 2, 10, 11});
  const NodeId b = t.insert({1, 2, 20, 21}).node;
  t.tree.lock(Tier::kDevice, b);
  EXPECT_EQ(t.evict(Tier::kDevice, 100), 2u);
  EXPECT_EQ(t.peek({1, 2, 20, 21}).device_pages, 4u);
  EXPECT_EQ(t.peek({1, 2, 10, 11}).device_pages, 2u);
  t.tree.unlock(Tier::kDevice, b);
  EXPECT_EQ(t.evict(Tier::kDevice, 2), 2u);
  EXPECT_EQ(t.peek({1, 2}).device_pages, 2u);  // its base is a leaf now
  EXPECT_EQ(t.evict(Tier::kDevice, 2), 2u);
  EXPECT_EQ(t.tree.forest().size(), 0u);
}

// Case 21.
TEST(RadixEviction, SlruKeepsWhatWasInsertedTwice) {
  TestTree t(1, "slru");
  for (int i = 0; i < 3; ++i) t.insert({1, 2});
  t.insert({5, 6});
  for (const Token token : {30, 31, 32, 33, 34, 35, 36, 31}) t.insert({token});
  EXPECT_GE(t.evict(Tier::kDevice, 4), 4u);
  EXPECT_EQ(t.peek({1, 2}).device_pages, 2u);
  EXPECT_EQ(t.peek({5, 6}).device_pages, 0u);
  EXPECT_EQ(t.peek({31}).device_pages, 1u);
}

TEST(RadixEviction, OtherOrdersChooseByTheirNames) {
  const auto first_victim = [](const char* order) {
    TestTree t(1, order);
    t.insert({1});
    t.insert({2});
    t.insert({3, 4});
    t.insert({2});
    t.match({1});
    t.evict(Tier::kDevice, 1);
    EXPECT_TRUE(t.is_valid()) << order;
    for (const Token token : {1, 2, 3}) {
      if (t.peek({token}).pages() == 0) return token;
    }
    return Token{0};
  };
  EXPECT_EQ(first_victim("lru"), 3u);
  EXPECT_EQ(first_victim("mru"), 1u);
  EXPECT_EQ(first_victim("fifo"), 1u);
  EXPECT_EQ(first_victim("filo"), 3u);
  EXPECT_EQ(first_victim("lfu"), 3u);  // as often as 1, which was used later
}

TEST(RadixEviction, LengthAwareEvictsTheLatestPartOfARequestFirst) {
  TestTree t(1, "length_aware");
  t.insert({1});
  t.insert({2, 3});
  t.insert({2, 3, 4});
  t.insert({5});
  EXPECT_EQ(t.evict(Tier::kDevice, 1), 1u);
  EXPECT_EQ(t.peek({2, 3, 4}).device_pages, 2u);
}

TEST(RadixEviction, HalvesOfASplitHaveTheHistoryOfTheWhole) {
  TestTree t(1);
  NodeId lower = kNoNode;
  for (int i = 0; i < 3; ++i) lower = t.insert({1, 2, 3, 4}, {.priority = 2}).node;
  t.insert({9});
  const eviction::LeafHistory whole = t.tree.node(lower).history;
  const NodeId upper = t.match({1, 2}).node;
  for (const NodeId half : {upper, lower}) {
    const eviction::LeafHistory& own = t.tree.node(half).history;
    EXPECT_EQ(own.uses, whole.uses);
    EXPECT_EQ(own.stored_at, whole.stored_at);
    EXPECT_EQ(own.priority, whole.priority);
  }
  EXPECT_EQ(t.tree.node(lower).history.used_at, whole.used_at);
  EXPECT_GT(t.tree.node(upper).history.used_at, whole.used_at);  // by the match alone
}

TEST(RadixEviction, ALockThatASplitCutsHoldsBothHalves) {
  TestTree t(1);
  const NodeId node = t.insert({1, 2, 3, 4}).node;
  t.tree.lock(Tier::kDevice, node);
  t.insert({1, 2, 9});
  EXPECT_EQ(t.tree.use(Tier::kDevice).protected_pages, 4u);
  EXPECT_EQ(t.evict(Tier::kDevice, 100), 1u);
  t.tree.unlock(Tier::kDevice, node);  // the handle still names the end of the four
  EXPECT_EQ(t.tree.use(Tier::kDevice).protected_pages, 0u);
  EXPECT_TRUE(t.is_valid());
  EXPECT_EQ(t.evict(Tier::kDevice, 100), 4u);
}

// J, decode lock balance: locks and unlocks of whole requests leave nothing behind.
TEST(RadixEviction, RepeatedRequestsLeaveNoLocks) {
  TestTree t(1);
  for (int round = 0; round < 10; ++round) {
    for (const bool succeeds : {true, false}) {
      const RadixMatch match = t.match({1, 2, 3, 4});
      t.tree.lock(Tier::kDevice, match.device_node);
      if (succeeds) t.insert({1, 2, 3, 4}, {.owned_pages = match.device_pages});
      t.tree.unlock(Tier::kDevice, match.device_node);
    }
  }
  EXPECT_EQ(t.tree.held_locks(), 0u);
  EXPECT_EQ(t.tree.use(Tier::kDevice).protected_pages, 0u);
  EXPECT_EQ(t.tree.use(Tier::kDevice).evictable_pages(), 4u);
  EXPECT_TRUE(t.is_valid());
}

}  // namespace
}  // namespace cachalot::tier
