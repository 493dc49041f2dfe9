#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "tier/radix/radix_test_tree.h"
#include "tier/radix/radix_tree.h"

namespace cachalot::tier {
namespace {

// Case 29.
TEST(RadixHost, ABackedLeafIsDemotedAndThenRemoved) {
  TestTree t(1);
  const NodeId node = t.insert({1, 2}).node;
  t.back_up(node);
  EXPECT_EQ(t.evict(Tier::kHost, 10), 0u);  // not while it is in device memory
  EXPECT_EQ(t.evict(Tier::kDevice, 1), 2u);
  EXPECT_EQ(t.peek({1, 2}).device_pages, 0u);
  EXPECT_EQ(t.peek({1, 2}).host_pages, 2u);
  EXPECT_EQ(t.evict(Tier::kDevice, 1), 0u);
  EXPECT_EQ(t.evict(Tier::kHost, 1), 2u);
  EXPECT_EQ(t.tree.forest().size(), 0u);
  EXPECT_TRUE(t.is_valid());
}

// Case 30.
TEST(RadixHost, AHostOnlyNodeIsSplitWithItsSlots) {
  TestTree t(2);
  const Tokens tokens = tokens_from(1, 8);
  const NodeId node = t.insert(tokens).node;
  const Slots slots = t.back_up(node);
  t.evict(Tier::kDevice, 4);
  const RadixMatch match = t.match({1, 2, 3, 4, 99, 98});
  EXPECT_EQ(match.device_pages, 0u);
  EXPECT_EQ(match.host_pages, 2u);
  EXPECT_EQ(match.device_node, kNoNode);
  EXPECT_TRUE(t.tree.node(match.node).is_in(Tier::kHost));
  EXPECT_TRUE(t.tree.node(node).is_in(Tier::kHost));
  EXPECT_EQ(t.host_slots(tokens), slots);
  EXPECT_TRUE(t.is_valid());
}

// Case 31: the slots a load back is given replace those that were evicted.
TEST(RadixHost, ALoadBackTakesNewDeviceSlots) {
  TestTree t(1);
  const NodeId node = t.insert({1, 2}).node;
  const Slots host = t.back_up(node);
  t.evict(Tier::kDevice, 2);
  t.insert({8, 9});  // may have the old slots
  const Slots device = t.device.take(2);
  ASSERT_TRUE(t.tree.attach(Tier::kDevice, node, device));
  EXPECT_EQ(t.device_slots({1, 2}), device);
  ASSERT_TRUE(t.demote(node));
  EXPECT_EQ(t.host_slots({1, 2}), host);
  EXPECT_TRUE(t.is_valid());
}

TEST(RadixHost, ALoadBackGoesFromTheTop) {
  TestTree t(1);
  const NodeId top = t.insert({1}).node;
  const NodeId leaf = t.insert({1, 2}).node;
  t.back_up_path(leaf);
  t.evict(Tier::kDevice, 2);
  EXPECT_EQ(t.tree.attach(Tier::kDevice, leaf, t.device.take(1)).error().code, Code::kRefused);
  ASSERT_TRUE(t.tree.attach(Tier::kDevice, top, t.device.take(1)));
  ASSERT_TRUE(t.tree.attach(Tier::kDevice, leaf, t.device.take(1)));
  EXPECT_EQ(t.match({1, 2}).device_pages, 2u);
  EXPECT_TRUE(t.tree.is_valid());
}

TEST(RadixHost, AnInsertOfAPartOfAPromptIsNoUse) {
  TestTree t(1);
  const NodeId node = t.insert({1, 2}, {.counts_use = false}).node;
  EXPECT_EQ(t.tree.node(node).history.uses, 0u);
  t.insert({1, 2, 3});
  EXPECT_EQ(t.tree.node(node).history.uses, 1u);  // the whole prompt counts for its first part
}

// Case 33: by write-back the leaf is backed up, not its parent.
TEST(RadixHost, ByWriteBackAVictimIsBackedUpAlone) {
  TestTree t(1);
  const NodeId top = t.insert({1}).node;
  const NodeId leaf = t.insert({1, 2}).node;
  t.tree.lock(Tier::kDevice, top);
  EXPECT_EQ(t.evict(Tier::kDevice, 10,
                    [&](NodeId node) {
                      EXPECT_EQ(node, leaf);
                      t.back_up(node);
                      return UnbackedVictim::kBackedUp;
                    }),
            1u);
  EXPECT_FALSE(t.tree.node(top).is_in(Tier::kHost));
  EXPECT_EQ(t.peek({1, 2}).device_pages, 1u);
  EXPECT_EQ(t.peek({1, 2}).host_pages, 1u);
  t.tree.unlock(Tier::kDevice, top);
  EXPECT_TRUE(t.is_valid());
}

// Case 34.
TEST(RadixHost, WithoutHostMemoryAVictimGoesWithAllBelowItUnlessThatIsPinned) {
  TestTree t(1);
  const NodeId top = t.insert({1}).node;
  const NodeId leaf = t.insert({1, 2}).node;
  t.back_up(leaf);
  ASSERT_TRUE(t.demote(leaf));
  t.tree.lock(Tier::kHost, leaf);
  EXPECT_EQ(t.evict(Tier::kDevice, 1), 0u);
  EXPECT_TRUE(t.tree.node(top).is_in(Tier::kDevice));
  EXPECT_EQ(t.peek({1, 2}).pages(), 2u);
  EXPECT_TRUE(t.is_valid());
  t.tree.unlock(Tier::kHost, leaf);
  EXPECT_EQ(t.evict(Tier::kDevice, 1), 1u);
  EXPECT_EQ(t.peek({1, 2}).pages(), 0u);
  EXPECT_EQ(t.host.used(), 0u);
  EXPECT_TRUE(t.is_valid());
}

// Case 35.
TEST(RadixHost, WithoutACopyANodeIsNotDemoted) {
  TestTree t(1);
  const NodeId node = t.insert({1, 2}).node;
  EXPECT_EQ(t.match({1, 2}).device_pages, 2u);
  const Status demoted = t.demote(node);
  ASSERT_FALSE(demoted);
  EXPECT_EQ(demoted.error().code, Code::kRefused);
  EXPECT_NE(std::string(demoted.error().message).find("back it up first"), std::string::npos);
  EXPECT_TRUE(t.is_valid());
}

// Case 36.
TEST(RadixHost, ABackedNodeIsNotBackedAgain) {
  TestTree t(1);
  const NodeId node = t.insert({1}).node;
  t.back_up(node);
  EXPECT_EQ(t.tree.backups().begin(node).error().code, Code::kRefused);
  EXPECT_EQ(t.tree.attach(Tier::kHost, node, t.host.take(1)).error().code, Code::kRefused);
  EXPECT_EQ(t.pages(Tier::kHost), 1u);
}

// Case 37: here the insert is over before the backup starts, so the suffix is in device memory by then.
TEST(RadixHost, HostEvictionForABackupTakesNothingOfThePathJustInserted) {
  TestTree t(1);
  const Tokens tokens = tokens_from(1, 8);
  const NodeId deep = t.insert(tokens).node;
  t.back_up(deep);
  t.match({1, 2, 3, 4});
  t.evict(Tier::kDevice, 4);  // the second half is in host memory alone
  EXPECT_EQ(t.match(tokens).host_pages, 4u);
  const NodeId node = t.insert(tokens).node;
  EXPECT_EQ(t.evict(Tier::kHost, 100), 0u);
  EXPECT_EQ(t.match(tokens).device_pages, 8u);
  EXPECT_EQ(node, deep);
  EXPECT_TRUE(t.is_valid());
}

// Case 39 is invariant 5 and 6 of TieredForest, which is_valid() checks after each step of all tests.

TEST(RadixHost, AnInsertAdoptsSlotsForWhatIsInHostMemoryAlone) {
  TestTree t(1);
  t.back_up_path(t.insert({1, 2, 3}).node);
  t.evict(Tier::kDevice, 3);
  const Inserted again = t.insert({1, 2, 3, 4});
  EXPECT_EQ(again.present_pages, 0u);
  EXPECT_EQ(again.adopted_pages, 3u);
  EXPECT_EQ(again.new_pages, 1u);
  EXPECT_TRUE(t.surplus.empty());
  EXPECT_EQ(t.match({1, 2, 3, 4}).device_pages, 4u);
  EXPECT_EQ(t.pages(Tier::kHost), 3u);
  EXPECT_TRUE(t.is_valid());
}

TEST(RadixHost, AnInsertThatEndsInAHostOnlyNodeAdoptsItsFrontOnly) {
  TestTree t(1);
  t.back_up_path(t.insert({1, 2, 3, 4}).node);
  t.evict(Tier::kDevice, 4);
  EXPECT_EQ(t.insert({1, 2}).adopted_pages, 2u);
  const RadixMatch match = t.match({1, 2, 3, 4});
  EXPECT_EQ(match.device_pages, 2u);
  EXPECT_EQ(match.host_pages, 2u);
  EXPECT_TRUE(t.is_valid());
}

// Cases 41 and 42, the tree's side: pages that were fetched into host memory.
TEST(RadixHost, FetchedPagesAreHostOnly) {
  TestTree t(1);
  EXPECT_EQ(t.insert({1, 2, 3}, {.tier = Tier::kHost}).new_pages, 3u);
  const RadixMatch match = t.match({1, 2, 3});
  EXPECT_EQ(match.device_pages, 0u);
  EXPECT_EQ(match.host_pages, 3u);
  EXPECT_TRUE(t.is_valid());
}

// Case 42.
TEST(RadixHost, FetchedPagesMayLieBelowAnUnbackedParent) {
  TestTree t(1);
  t.insert({1, 2});
  const Inserted fetched = t.insert({1, 2, 3, 4}, {.tier = Tier::kHost, .owned_pages = 2});
  EXPECT_EQ(fetched.new_pages, 2u);
  EXPECT_EQ(t.match({1, 2, 3, 4}).host_pages, 2u);
  EXPECT_TRUE(t.is_valid());
  t.evict(Tier::kDevice, 100);
  EXPECT_TRUE(t.is_valid());
  EXPECT_EQ(t.tree.forest().size(), 0u);
}

TEST(RadixHost, FetchedPagesBackUpThePathThatIsInDeviceMemory) {
  TestTree t(1);
  t.insert({1, 2});
  const Inserted fetched = t.insert({1, 2, 3}, {.tier = Tier::kHost});
  EXPECT_EQ(fetched.adopted_pages, 2u);
  EXPECT_EQ(fetched.new_pages, 1u);
  EXPECT_EQ(t.pages(Tier::kHost), 3u);
  EXPECT_TRUE(t.is_valid());
}

TEST(RadixHost, HostMemoryEvictsItsLeastRecentlyUsedLeaf) {
  TestTree t(1);
  for (const Token token : {1, 2, 3}) t.insert({token}, {.tier = Tier::kHost});
  t.match({1});
  EXPECT_EQ(t.evict(Tier::kHost, 1), 1u);
  EXPECT_EQ(t.peek({2}).pages(), 0u);
  EXPECT_EQ(t.peek({1}).pages() + t.peek({3}).pages(), 2u);
}

// History is the node's, not the tier's: what was demoted late may have been used early.
TEST(RadixHost, ADemotedNodeIsAsOldAsItsLastUse) {
  TestTree t(1);
  const NodeId old = t.insert({1}).node;
  t.back_up(old);
  t.insert({2}, {.tier = Tier::kHost});
  ASSERT_TRUE(t.demote(old));
  EXPECT_EQ(t.evict(Tier::kHost, 1), 1u);
  EXPECT_EQ(t.peek({1}).pages(), 0u);
  EXPECT_EQ(t.peek({2}).host_pages, 1u);
}

TEST(RadixHost, APinnedHostCopyStays) {
  TestTree t(1);
  const NodeId node = t.insert({1, 2}, {.tier = Tier::kHost}).node;
  t.tree.lock(Tier::kHost, node);
  EXPECT_EQ(t.tree.use(Tier::kHost).protected_pages, 2u);
  EXPECT_EQ(t.evict(Tier::kHost, 1), 0u);
  t.match({1});  // the lock holds both halves
  EXPECT_EQ(t.evict(Tier::kHost, 1), 0u);
  t.tree.unlock(Tier::kHost, node);
  EXPECT_EQ(t.evict(Tier::kHost, 1), 1u);
  EXPECT_EQ(t.evict(Tier::kHost, 1), 1u);
  EXPECT_TRUE(t.is_valid());
}

TEST(RadixBackup, AFinishedBackupIsACopy) {
  TestTree t(1);
  const NodeId node = t.insert({1, 2}).node;
  const auto ticket = t.tree.backups().begin(node);
  ASSERT_TRUE(ticket);
  EXPECT_EQ(t.evict(Tier::kDevice, 1), 0u);  // its source
  const Slots slots = t.host.take(2);
  std::vector<NodeId> nodes;
  Slots surplus;
  EXPECT_EQ(t.tree.backups().finish(*ticket, Slots{1}, nodes, surplus).error().code,
            Code::kInvalidArgument);
  ASSERT_TRUE(t.tree.backups().finish(*ticket, slots, nodes, surplus));
  EXPECT_EQ(nodes, (std::vector<NodeId>{node}));
  EXPECT_EQ(t.tree.backups().finish(*ticket, slots, nodes, surplus).error().code, Code::kNotFound);
  EXPECT_EQ(t.evict(Tier::kDevice, 1), 2u);
  EXPECT_EQ(t.host_slots({1, 2}), slots);
  EXPECT_TRUE(t.is_valid());
}

// Cases 25 and 28: a split while the backup is in flight.
TEST(RadixBackup, PiecesOfASplitArePublishedParentFirst) {
  TestTree t(1);
  const NodeId lower = t.insert({1, 2, 3, 4, 5, 6}).node;
  const auto ticket = t.tree.backups().begin(lower);
  ASSERT_TRUE(ticket);
  const NodeId upper = t.match({1, 2}).node;
  const NodeId middle = t.match({1, 2, 3, 4}).node;
  EXPECT_TRUE(t.tree.is_valid());
  EXPECT_EQ(t.evict(Tier::kDevice, 100), 0u);
  std::vector<NodeId> nodes;
  Slots surplus;
  const Slots slots = t.host.take(6);
  ASSERT_TRUE(t.tree.backups().finish(*ticket, slots, nodes, surplus));
  EXPECT_EQ(nodes, (std::vector<NodeId>{upper, middle, lower}));
  t.evict(Tier::kDevice, 100);
  EXPECT_EQ(t.host_slots({1, 2, 3, 4, 5, 6}), slots);
  EXPECT_TRUE(t.is_valid());
}

TEST(RadixBackup, PagesThatWereFetchedMeanwhileAreSurplus) {
  TestTree t(1);
  const NodeId node = t.insert({1, 2, 3}).node;
  const auto ticket = t.tree.backups().begin(node);
  ASSERT_TRUE(ticket);
  t.insert({1, 2}, {.tier = Tier::kHost});
  std::vector<NodeId> nodes;
  Slots surplus;
  const Slots slots = t.host.take(3);
  ASSERT_TRUE(t.tree.backups().finish(*ticket, slots, nodes, surplus));
  EXPECT_EQ(surplus, (Slots{slots[0], slots[1]}));
  t.host.give(surplus);
  EXPECT_TRUE(t.is_valid());
}

}  // namespace
}  // namespace cachalot::tier
