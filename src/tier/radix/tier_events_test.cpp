#include "tier/radix/tier_events.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "block_hash/block_hasher.h"
#include "tier/radix/radix_test_tree.h"

namespace cachalot::tier {
namespace {

using Kind = TierEvent::Kind;

class TierEventsTest : public testing::Test {
 protected:
  NodeId insert(const Tokens& tokens, const std::string& extra = "") {
    std::vector<BlockHash> hashes = hashes_of(tokens, extra);
    return t.insert(RadixKey{.tokens = tokens, .extra = extra}, {.hashes = hashes}).node;
  }
  std::vector<BlockHash> hashes_of(const Tokens& tokens, const std::string& extra = "") {
    auto hasher = block_hash::BlockHasher::xxh3(block_hash::make_namespace(extra));
    std::vector<BlockHash> hashes(tokens.size() / 2);
    hasher.hash_blocks(hasher.root(), tokens, 2, hashes);
    return hashes;
  }
  // "stored device", …
  std::vector<std::string> take() {
    events = log.take();
    std::vector<std::string> names;
    for (const TierEvent& event : events) {
      if (event.kind == Kind::kCleared) {
        names.push_back("cleared");
        continue;
      }
      names.push_back(std::string(event.kind == Kind::kStored ? "stored " : "removed ") +
                      (event.tier == Tier::kDevice ? "device" : "host"));
    }
    return names;
  }
  using Names = std::vector<std::string>;

  TestTree t{2};
  TierEvents log{t.tree};
  std::vector<TierEvent> events;
};

// Case 27.
TEST_F(TierEventsTest, ChainedStoresAreOneEvent) {
  insert({1, 2});
  insert({1, 2, 3, 4});
  EXPECT_EQ(take(), (Names{"stored device"}));
  EXPECT_EQ(events[0].tokens, (Tokens{1, 2, 3, 4}));
  EXPECT_EQ(events[0].hashes, hashes_of({1, 2, 3, 4}));
  EXPECT_FALSE(events[0].parent.has_value());
  insert({1, 2, 3, 4, 5, 6});
  EXPECT_EQ(take(), (Names{"stored device"}));
  EXPECT_EQ(events[0].parent, hashes_of({1, 2, 3, 4})[1]);
}

// Case 27: not merged.
TEST_F(TierEventsTest, StoresThatAreNotChainedStaySeparate) {
  insert({1, 2});
  insert({7, 8});        // not its child
  insert({1, 2, 3, 4});  // its parent is not the last
  insert({1, 2, 3, 4}, "salt");
  EXPECT_EQ(take().size(), 4u);
  EXPECT_EQ(events[3].extra, "salt");
  EXPECT_NE(events[3].hashes, hashes_of({1, 2, 3, 4}));
}

// Case 27.
TEST_F(TierEventsTest, NothingIsMergedAcrossARemovalOrAClear) {
  insert({1, 2});
  insert({9, 9});
  t.match({1, 2});
  t.evict(Tier::kDevice, 1);
  insert({1, 2, 3, 4});
  EXPECT_EQ(take(), (Names{"stored device", "stored device", "removed device", "stored device"}));
  FreedSlots freed;
  ASSERT_TRUE(t.tree.clear(freed));
  insert({1, 2, 3, 4, 5, 6});
  EXPECT_EQ(take(), (Names{"cleared", "stored device"}));
}

// Case 27: not merged.
TEST_F(TierEventsTest, RemovalsInDifferentNamespacesStaySeparate) {
  insert({1, 2});
  insert({3, 4});
  insert({1, 2}, "salt");
  take();
  t.evict(Tier::kDevice, 10);
  EXPECT_EQ(take(), (Names{"removed device", "removed device"}));
  EXPECT_EQ(events[0].hashes.size(), 2u);
  EXPECT_EQ(events[0].extra, "");
  EXPECT_EQ(events[1].extra, "salt");
}

// Case 27: p = 2, four tokens.
TEST_F(TierEventsTest, WhatIsRemovedIsWhatWasStored) {
  insert({1, 2, 3, 4});
  take();
  const auto stored = events[0].hashes;
  t.match({1, 2});  // split
  EXPECT_TRUE(take().empty());
  t.evict(Tier::kDevice, 10);
  EXPECT_EQ(take(), (Names{"removed device"}));  // two nodes, merged
  auto removed = events[0].hashes;
  EXPECT_TRUE(std::is_permutation(removed.begin(), removed.end(), stored.begin(), stored.end()));
  EXPECT_EQ(removed[0], stored[1]);  // the child first
}

// Case 26.
TEST_F(TierEventsTest, RepeatedPagesAreOneEventOfDifferentHashes) {
  insert({1, 2, 1, 2});
  take();
  ASSERT_EQ(events.size(), 1u);
  EXPECT_NE(events[0].hashes[0], events[0].hashes[1]);
  EXPECT_FALSE(events[0].parent.has_value());
}

// Case 28.
TEST_F(TierEventsTest, EachTierHasItsOwn) {
  const NodeId node = insert({1, 2, 3, 4});
  EXPECT_EQ(take(), (Names{"stored device"}));
  const auto hashes = events[0].hashes;
  t.back_up(node);
  EXPECT_EQ(take(), (Names{"stored host"}));
  EXPECT_EQ(events[0].hashes, hashes);
  t.evict(Tier::kDevice, 1);
  EXPECT_EQ(take(), (Names{"removed device"}));
  ASSERT_TRUE(t.tree.attach(Tier::kDevice, node, t.device.take(2)));
  EXPECT_EQ(take(), (Names{"stored device"}));
  t.evict(Tier::kDevice, 1);
  t.evict(Tier::kHost, 1);
  EXPECT_EQ(take(), (Names{"removed device", "removed host"}));
}

// Case 28.
TEST_F(TierEventsTest, AnEvictedNodeThatIsInsertedAgainIsStoredAgain) {
  t.back_up(insert({1, 2}));
  t.evict(Tier::kDevice, 1);
  take();
  insert({1, 2});
  EXPECT_EQ(take(), (Names{"stored device"}));
}

// Case 28.
TEST_F(TierEventsTest, ABackupThatWasSplitIsOneEventAtItsEnd) {
  const auto ticket = t.tree.backups().begin(insert({1, 2, 3, 4}));
  ASSERT_TRUE(ticket);
  t.match({1, 2});
  EXPECT_EQ(take(), (Names{"stored device"}));
  std::vector<NodeId> nodes;
  Slots surplus;
  ASSERT_TRUE(t.tree.backups().finish(*ticket, t.host.take(2), nodes, surplus));
  EXPECT_EQ(nodes.size(), 2u);
  EXPECT_EQ(take(), (Names{"stored host"}));
  EXPECT_EQ(events[0].tokens, (Tokens{1, 2, 3, 4}));
}

TEST_F(TierEventsTest, PagesWithoutHashesAreCounted) {
  t.insert({1, 2, 3, 4});
  t.evict(Tier::kDevice, 10);
  EXPECT_TRUE(take().empty());
  EXPECT_EQ(log.unnamed_pages(), 4u);
}

}  // namespace
}  // namespace cachalot::tier
