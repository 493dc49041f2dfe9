#include "tier/radix/radix_tree.h"

#include <gtest/gtest.h>

#include <vector>

#include "tier/radix/radix_test_tree.h"

namespace cachalot::tier {
namespace {

TEST(RadixTree, APeekSplitsNothingAndIsNoUse) {
  TestTree t(1);
  t.insert({1, 2, 3, 4});
  t.insert({9});
  const RadixMatch peeked = t.peek({1, 2, 7});
  EXPECT_EQ(peeked.device_pages, 2u);
  EXPECT_EQ(peeked.node, kNoNode);
  EXPECT_EQ(t.tree.forest().size(), 2u);
  t.evict(Tier::kDevice, 1);
  EXPECT_EQ(t.peek({1, 2, 3, 4}).device_pages, 0u);  // still the least recently used
  EXPECT_EQ(t.peek({9}).device_pages, 1u);
}

// Case 9.
TEST(RadixTree, ALongerKeyReportsThePrefixThatWasThere) {
  TestTree t(2);
  const Tokens a = {1, 2, 3, 4};
  t.insert(a);
  const Inserted longer = t.insert(join(a, {5, 6}));
  EXPECT_EQ(longer.present_pages, 2u);
  EXPECT_EQ(longer.new_pages, 1u);
  EXPECT_EQ(t.match(join(a, {77, 78})).device_pages, 2u);
  EXPECT_EQ(t.match({77, 78}).device_pages, 0u);
}

// Case 10.
TEST(RadixTree, DuplicatesAfterTheOwnedPagesAreSurplus) {
  TestTree t(2);
  t.insert({1, 2});
  EXPECT_EQ(t.device.used(), 1u);
  t.insert({1, 2, 3, 4});
  EXPECT_EQ(t.surplus, (Slots{t.slots[0]}));
  EXPECT_EQ(t.device.used(), 2u);
  t.insert({1, 2, 3, 4, 5, 6}, {.owned_pages = 2});
  EXPECT_TRUE(t.surplus.empty());
  EXPECT_EQ(t.device.used(), 3u);
  EXPECT_TRUE(t.is_valid());
}

TEST(RadixTree, ASlotThatTheTreeHasForThePageIsNoSurplus) {
  TestTree t(1);
  t.insert({1, 2});
  const Slots own = t.slots;
  Slots surplus;
  ASSERT_TRUE(t.tree.insert({.tokens = Tokens{1, 2}}, own, {}, surplus));
  EXPECT_TRUE(surplus.empty());
}

// Case 11.
TEST(RadixTree, SlotsOfAPartOfAPageAreSurplus) {
  TestTree t(4);
  const Tokens tokens = tokens_from(1, 6);
  const Slots slots = t.device.take(2);
  Slots surplus;
  const auto inserted = t.tree.insert({.tokens = tokens}, slots, {}, surplus);
  ASSERT_TRUE(inserted);
  EXPECT_EQ(inserted->new_pages, 1u);
  EXPECT_EQ(surplus, (Slots{slots[1]}));
  EXPECT_EQ(t.match(tokens).device_pages, 1u);
}

TEST(RadixTree, AKeyOfLessThanAPageLeavesNoTrace) {
  TestTree t(4);
  EXPECT_EQ(t.insert({1, 2, 3}).node, kNoNode);
  EXPECT_EQ(t.tree.forest().size(), 0u);
  EXPECT_TRUE(t.tree.forest().roots().empty());
  EXPECT_TRUE(t.is_valid());
}

// Case 12.
TEST(RadixTree, ARequestThatCameSecondGoesOnWithTheSlotsOfTheTree) {
  TestTree t(1);
  t.insert({1, 2, 3});
  const Slots first = t.slots;
  t.insert({1, 2, 3});
  EXPECT_EQ(t.surplus, t.slots);
  EXPECT_EQ(t.device_slots({1, 2, 3}), first);
}

TEST(RadixTree, AnInsertOfWrongSizesChangesNothing) {
  TestTree t(2);
  t.insert({1, 2});
  Slots surplus;
  const Tokens tokens = {1, 2, 3, 4};
  const Slots one = {7}, two = {7, 8};
  const std::vector<BlockHash> hashes(1);
  const auto code = [&](const Slots& slots, const InsertOptions& options) {
    const auto result = t.tree.insert({.tokens = tokens}, slots, options, surplus);
    return result ? Code::kInternal : result.error().code;
  };
  EXPECT_EQ(code(one, {}), Code::kInvalidArgument);
  EXPECT_EQ(code(two, {.owned_pages = 3}), Code::kInvalidArgument);
  EXPECT_EQ(code(two, {.hashes = hashes}), Code::kInvalidArgument);
  EXPECT_EQ(code({}, {.owned_pages = 2}), Code::kStale);  // only the first is there
  EXPECT_TRUE(surplus.empty());
  EXPECT_EQ(t.tree.forest().size(), 1u);
  EXPECT_TRUE(t.is_valid());
}

// Cases 14 and 15.
TEST(RadixTree, NamespacesShareNothing) {
  TestTree t(1);
  const Tokens tokens = {1, 2, 3};
  const std::vector<RadixKey> keys = {
      {.tokens = tokens}, {.tokens = tokens, .extra = "key1"}, {.tokens = tokens, .extra = "key2"}};
  std::vector<Slots> slots;
  for (const RadixKey& key : keys) {
    EXPECT_EQ(t.insert(key).present_pages, 0u);
    slots.push_back(t.slots);
  }
  for (std::size_t i = 0; i < keys.size(); ++i) {
    MatchSlots found;
    t.tree.match(keys[i], &found);
    EXPECT_EQ(found.device, slots[i]);
  }
  EXPECT_EQ(t.tree.match({.tokens = tokens, .extra = "nonexistent"}).pages(), 0u);
  EXPECT_TRUE(t.is_valid());
}

// Case 25: the hashes of a node go with its pages.
TEST(RadixTree, ASplitCutsTheHashesWithThePages) {
  TestTree t(2);
  const Tokens tokens = tokens_from(1, 12);
  std::vector<BlockHash> hashes;
  for (std::uint64_t i = 0; i < 6; ++i) hashes.push_back({i, 0});
  const NodeId lower = t.insert(tokens, {.hashes = hashes}).node;
  const NodeId upper = t.match({1, 2, 3, 4}).node;
  const auto of = [&](NodeId node) {
    const auto own = t.tree.node(node).hashes.view();
    return std::vector<BlockHash>(own.begin(), own.end());
  };
  EXPECT_EQ(of(upper), std::vector<BlockHash>(hashes.begin(), hashes.begin() + 2));
  EXPECT_EQ(of(lower), std::vector<BlockHash>(hashes.begin() + 2, hashes.end()));
  EXPECT_TRUE(t.is_valid());
}

TEST(RadixTree, ASplitOfANodeWithoutHashesGivesNodesWithout) {
  TestTree t(1);
  const NodeId lower = t.insert({1, 2, 3}).node;
  const NodeId upper = t.match({1}).node;
  EXPECT_TRUE(t.tree.node(upper).hashes.empty());
  EXPECT_TRUE(t.tree.node(lower).hashes.empty());
  // A later insert that knows them fills in what is missing.
  const std::vector<BlockHash> hashes = {{1, 0}, {2, 0}, {3, 0}};
  t.insert({1, 2, 3}, {.hashes = hashes});
  EXPECT_EQ(t.tree.node(upper).hashes.view()[0], hashes[0]);
  EXPECT_EQ(t.tree.node(lower).hashes.view()[1], hashes[2]);
}

// Case 27: SGLang's is 1,101 nodes. A million: tiered_forest_test.cpp.
TEST(RadixTree, AChainOfManyNodesIsWalkedLockedAndEvicted) {
  TestTree t(1);
  constexpr std::uint32_t kNodes = 3000;
  const Tokens tokens = tokens_from(1, kNodes);
  const NodeId last = t.insert(tokens).node;
  for (std::uint32_t pages = 1; pages < kNodes; ++pages) {
    t.tree.match({.tokens = std::span(tokens).first(pages)});
  }
  EXPECT_EQ(t.tree.forest().size(), kNodes);
  EXPECT_EQ(t.match(tokens).device_pages, kNodes);
  t.tree.lock(Tier::kDevice, last);
  EXPECT_EQ(t.tree.use(Tier::kDevice).evictable_pages(), 0u);
  EXPECT_EQ(t.evict(Tier::kDevice, 1), 0u);
  t.tree.unlock(Tier::kDevice, last);
  EXPECT_TRUE(t.is_valid());
  EXPECT_EQ(t.evict(Tier::kDevice, kNodes), kNodes);
  EXPECT_EQ(t.tree.forest().size(), 0u);
  EXPECT_TRUE(t.is_valid());
}

TEST(RadixTreeDeathTest, ANodeThatIsGoneIsABug) {
  TestTree t(1);
  const NodeId node = t.insert({1}).node;
  t.evict(Tier::kDevice, 1);
  FreedSlots freed;
  for (const NodeId gone : {node, kNoNode}) {
    EXPECT_DEATH((void)t.tree.attach(Tier::kHost, gone, Slots{1}), "exists");
    EXPECT_DEATH((void)t.tree.detach(Tier::kHost, gone, freed), "exists");
  }
}

TEST(RadixTree, ClearingNeedsAllLocksReleased) {
  TestTree t(1);
  const NodeId node = t.insert({1, 2}).node;
  t.insert({.tokens = Tokens{1, 2}, .extra = "other"});
  t.back_up(node);
  FreedSlots freed;
  t.tree.lock(Tier::kDevice, node);
  EXPECT_EQ(t.tree.clear(freed).error().code, Code::kBusy);
  t.tree.unlock(Tier::kDevice, node);
  ASSERT_TRUE(t.tree.clear(freed));
  t.give(freed);
  EXPECT_EQ(t.device.used() + t.host.used(), 0u);
  EXPECT_TRUE(t.is_valid());
  EXPECT_EQ(t.insert({1, 2}).new_pages, 2u);
}

}  // namespace
}  // namespace cachalot::tier
