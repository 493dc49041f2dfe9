#include "tier/radix/components.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <algorithm>
#include <map>
#include <tuple>
#include <vector>

#include "tier/radix/radix_test_tree.h"
#include "tier/radix/radix_tree.h"

namespace cachalot::tier {
namespace {

constexpr std::size_t kC = 0;

struct HybridTree : TestTree {
  explicit HybridTree(Component component)
      : TestTree({.page_tokens = 1, .components = {component}}) {}

  Components& components() { return tree.components(); }
  void attach(NodeId node, std::size_t count, Tier tier = Tier::kDevice) {
    surplus.clear();
    const Slots given = pool.take(count);
    const Status done = components().attach(kC, tier, node, given, surplus);
    EXPECT_TRUE(done) << done.error().message;
    pool.give(surplus);
  }
  std::uint64_t evict_component(std::uint64_t count, Tier tier = Tier::kDevice) {
    FreedSlots freed;
    const std::uint64_t evicted = components().evict(kC, tier, count, freed);
    EXPECT_TRUE(freed.device.empty() && freed.host.empty());
    for (const Tier t : {Tier::kDevice, Tier::kHost}) pool.give(freed.of(kC, t));
    return evicted;
  }
  std::uint64_t evict_all(Tier tier) {
    FreedSlots freed;
    const std::uint64_t evicted = tree.evict(tier, 1000, freed);
    give(freed);
    for (const Tier t : {Tier::kDevice, Tier::kHost}) pool.give(freed.of(kC, t));
    return evicted;
  }
  bool is_valid() const {
    return TestTree::is_valid() &&
           tree.components().use(kC, Tier::kDevice) + tree.components().use(kC, Tier::kHost) ==
               pool.used();
  }

  TestPool pool;
};

constexpr Component kWindow{.rule = HitRule::kTrailingPages, .pages = 3};
constexpr Component kState{.rule = HitRule::kLastOnly};
constexpr Component kIndexer{.rule = HitRule::kAllPages};

TEST(Components, AStateIsNeededAtTheEndOfAMatchOnly) {
  HybridTree t(kState);
  const NodeId two = t.insert({1, 2}).node;
  const NodeId five = t.insert({1, 2, 3, 4, 5}).node;
  t.attach(two, 1);
  EXPECT_EQ(t.peek({1, 2, 3, 4, 5}).device_pages, 2u);
  EXPECT_EQ(t.peek({1, 2, 3, 4, 5}).full_pages, 5u);
  EXPECT_EQ(t.match({1, 2, 3, 4, 5}).node, two);
  t.attach(five, 1);
  EXPECT_EQ(t.match({1, 2, 3, 4, 5}).device_pages, 5u);
  EXPECT_EQ(t.match({1, 2, 3, 4}).device_pages, 2u);  // no state inside
  EXPECT_TRUE(t.is_valid());
}

// Case 30, with Mamba.
TEST(Components, ASplitLeavesTheStateAtTheEnd) {
  HybridTree t(kState);
  const NodeId node = t.insert({1, 2, 3, 4}).node;
  t.attach(node, 1);
  t.back_up(node);
  t.attach(node, 1, Tier::kHost);
  t.evict_all(Tier::kDevice);
  const RadixMatch match = t.match({1, 2, 9});
  EXPECT_EQ(match.host_pages, 0u);
  EXPECT_EQ(match.full_pages, 2u);
  EXPECT_EQ(t.match({1, 2, 3, 4}).host_pages, 4u);
  EXPECT_EQ(t.components().slots(kC, Tier::kHost, node).size(), 1u);
  EXPECT_TRUE(t.is_valid());
}

TEST(Components, AWindowIsNeededForTheLastPagesOnly) {
  HybridTree t(kWindow);
  const NodeId node = t.insert(tokens_from(1, 10)).node;
  t.attach(node, 3);  // a split: the first seven pages have none
  EXPECT_EQ(t.tree.forest().size(), 2u);
  EXPECT_EQ(t.match(tokens_from(1, 10)).device_pages, 10u);
  EXPECT_EQ(t.peek(tokens_from(1, 9)).device_pages, 0u);
  EXPECT_EQ(t.match(tokens_from(1, 7)).device_pages, 0u);
  EXPECT_EQ(t.match(tokens_from(1, 7)).full_pages, 7u);
  EXPECT_TRUE(t.is_valid());
}

TEST(Components, APrefixShorterThanTheWindowNeedsAllOfIt) {
  HybridTree t(kWindow);
  const NodeId node = t.insert({1, 2, 3, 4}).node;
  t.attach(node, 4);
  for (std::size_t pages = 1; pages <= 4; ++pages) {
    EXPECT_EQ(t.peek(tokens_from(1, pages)).device_pages, pages);
  }
}

TEST(Components, EachPageOfAPrefixNeedsItsIndex) {
  HybridTree t(kIndexer);
  const NodeId two = t.insert({1, 2}).node;
  const NodeId six = t.insert(tokens_from(1, 6)).node;
  t.attach(six, 4);
  EXPECT_EQ(t.peek(tokens_from(1, 6)).device_pages, 0u);
  t.attach(two, 2);
  EXPECT_EQ(t.peek(tokens_from(1, 5)).device_pages, 5u);
  EXPECT_EQ(t.evict_component(1), 2u);  // of the node nearest to the root
  EXPECT_EQ(t.peek(tokens_from(1, 6)).device_pages, 0u);
  EXPECT_TRUE(t.is_valid());
}

TEST(Components, WhatAHostCopyHasIsFoundBehindWhatTheDeviceHas) {
  HybridTree t(kWindow);
  const NodeId node = t.insert(tokens_from(1, 6)).node;
  t.attach(node, 6);
  t.back_up(node);
  t.attach(node, 6, Tier::kHost);
  EXPECT_EQ(t.evict_component(100), 6u);  // device memory keeps the KV of full attention
  const RadixMatch match = t.match(tokens_from(1, 6));
  EXPECT_EQ(match.device_pages, 0u);
  EXPECT_EQ(match.host_pages, 6u);
  EXPECT_TRUE(t.host_slots(tokens_from(1, 6)).empty());  // nothing but the window is to be loaded
  t.attach(node, 3);
  EXPECT_EQ(t.match(tokens_from(1, 6)).device_pages, 6u);
  EXPECT_TRUE(t.is_valid());
}

// J: SWA: gaps on internal nodes, and the window of the path that was used last stays.
TEST(Components, TheWindowPassedFirstIsEvictedFirst) {
  HybridTree t(kWindow);
  const NodeId front = t.insert(tokens_from(1, 4)).node;
  t.attach(front, 4);
  const NodeId back = t.insert(tokens_from(1, 8)).node;
  t.attach(back, 4);
  t.match(tokens_from(1, 8));
  EXPECT_EQ(t.evict_component(1), 4u);
  EXPECT_TRUE(t.components().slots(kC, Tier::kDevice, front).empty());
  EXPECT_EQ(t.match(tokens_from(1, 8)).device_pages, 8u);
  EXPECT_TRUE(t.is_valid());
}

// J: SWA: early release of the window keeps the lock of full attention.
TEST(Components, AWindowIsLockedAndReleasedBeforeItsNode) {
  HybridTree t(kWindow);
  const NodeId node = t.insert(tokens_from(1, 8)).node;
  t.attach(node, 8);
  t.tree.lock(Tier::kDevice, node);
  t.components().lock(kC, node);
  EXPECT_EQ(t.evict_component(100), 5u);  // all but the window
  t.match(tokens_from(1, 7));             // splits inside the window
  EXPECT_EQ(t.evict_component(100), 0u);
  EXPECT_TRUE(t.is_valid());
  t.components().unlock(kC, node);
  EXPECT_EQ(t.evict_component(100), 3u);
  EXPECT_EQ(t.tree.use(Tier::kDevice).protected_pages, 8u);
  EXPECT_EQ(t.evict_all(Tier::kDevice), 0u);
  t.tree.unlock(Tier::kDevice, node);
  EXPECT_EQ(t.evict_all(Tier::kDevice), 8u);
  EXPECT_TRUE(t.is_valid());
}

// J: Mamba's cap of states a path.
TEST(Components, OnlyTheLastStatesOfAPathAreKept) {
  HybridTree t(kState);
  std::vector<NodeId> nodes;
  for (std::size_t pages = 1; pages <= 6; ++pages) {
    nodes.push_back(t.insert(tokens_from(1, pages)).node);
    t.attach(nodes.back(), 1);
  }
  t.insert({1, 2, 99});  // the second node is a fork
  t.back_up(nodes[0]);
  t.attach(nodes[0], 1, Tier::kHost);
  t.tree.lock(Tier::kDevice, nodes[2]);
  t.components().lock(kC, nodes[2]);
  FreedSlots freed;
  t.components().keep_last(kC, nodes[5], 6, freed);
  EXPECT_TRUE(freed.of(kC, Tier::kDevice).empty());
  t.components().keep_last(kC, nodes[5], 4, freed);
  t.pool.give(freed.of(kC, Tier::kDevice));
  const auto has = [&](std::size_t i) {
    return !t.components().slots(kC, Tier::kDevice, nodes[i]).empty();
  };
  EXPECT_FALSE(has(0));
  EXPECT_TRUE(has(1) && has(2));
  EXPECT_FALSE(has(3));
  EXPECT_TRUE(has(4) && has(5));
  EXPECT_FALSE(t.components().slots(kC, Tier::kHost, nodes[0]).empty());
  FreedSlots more;
  t.components().keep_last(kC, nodes[5], 0, more);
  t.pool.give(more.of(kC, Tier::kDevice));
  EXPECT_TRUE(has(1) && has(2) && has(5) && !has(4));
  t.components().unlock(kC, nodes[2]);
  t.tree.unlock(Tier::kDevice, nodes[2]);
  EXPECT_TRUE(t.is_valid());
}

TEST(Components, GoWithTheTierOfTheirNode) {
  HybridTree t(kState);
  const NodeId node = t.insert({1, 2}).node;
  t.attach(node, 1);
  EXPECT_EQ(t.evict_all(Tier::kDevice), 2u);
  EXPECT_EQ(t.pool.used(), 0u);
  EXPECT_TRUE(t.is_valid());
}

TEST(Components, NeedTheirNodeInTheTier) {
  HybridTree t(kWindow);
  const NodeId node = t.insert({1, 2}).node;
  Slots surplus;
  const Slots three = {1, 2, 3};
  const auto code = [&](Tier tier, std::size_t slots) {
    return t.components()
        .attach(kC, tier, node, std::span(three).first(slots), surplus)
        .error()
        .code;
  };
  EXPECT_EQ(code(Tier::kHost, 1), Code::kRefused);
  EXPECT_EQ(code(Tier::kDevice, 3), Code::kInvalidArgument);
  EXPECT_EQ(code(Tier::kDevice, 0), Code::kInvalidArgument);
  EXPECT_TRUE(t.is_valid());
}

TEST(Components, SlotsOfPagesThatHaveThemAreSurplus) {
  HybridTree t(kWindow);
  t.attach(t.insert({1, 2}).node, 2);
  t.attach(t.insert({1, 2, 3}).node, 3);
  EXPECT_EQ(t.surplus.size(), 2u);
  EXPECT_EQ(t.components().use(kC, Tier::kDevice), 3u);
  EXPECT_TRUE(t.is_valid());
}

// All three rules at once, beside a map from prefixes to what they have in device memory.
RC_GTEST_PROP(Components, AMatchIsTheLongestPrefixWhoseRulesHold, ()) {
  const std::vector<Component> rules = {kWindow, kState, kIndexer};
  const std::size_t c = *rc::gen::inRange<std::size_t>(0, 3);
  HybridTree t(rules[c]);
  std::map<Tokens, bool>
      has;  // prefixes that are stored, and whether their last page has the component
  const auto steps = *rc::gen::resize(
      80, rc::gen::container<std::vector<std::tuple<int, std::uint32_t, std::vector<bool>>>>(
              rc::gen::tuple(rc::gen::inRange(0, 6), rc::gen::inRange<std::uint32_t>(1, 6),
                             rc::gen::resize(12, rc::gen::arbitrary<std::vector<bool>>()))));
  const auto sync = [&] {  // what evictions took, from the tree itself
    for (auto& [prefix, own] : has) own = false;
    for (const NodeId root : t.tree.forest().roots()) {
      std::vector<NodeId> nodes, path;
      t.tree.forest().append_subtree(root, nodes);
      for (const NodeId node : std::span(nodes).subspan(1)) {
        path.clear();
        t.tree.forest().append_path(node, path);
        Tokens tokens;
        for (const NodeId each : path) {
          const auto own = t.tree.node(each).tokens.view();
          tokens.insert(tokens.end(), own.begin(), own.end());
        }
        if (t.components().slots(kC, Tier::kDevice, node).empty()) continue;
        const std::size_t pages = rules[c].rule == HitRule::kLastOnly ? 1 : t.tree.node(node).pages;
        for (std::size_t i = 0; i < pages; ++i, tokens.pop_back()) has.at(tokens) = true;
      }
    }
  };
  for (const auto& [what, number, bits] : steps) {
    const Tokens tokens(bits.begin(), bits.end());
    if (what <= 1) {
      t.insert(tokens);
      for (Tokens prefix = tokens; !prefix.empty(); prefix.pop_back()) has.emplace(prefix, false);
    } else if (what == 2) {
      const Inserted again = t.insert(tokens);
      for (Tokens prefix = tokens; !prefix.empty(); prefix.pop_back()) has.emplace(prefix, false);
      if (again.node == kNoNode) continue;
      const bool is_state = rules[c].rule == HitRule::kLastOnly;
      const std::size_t slots = is_state ? 1 : std::min<std::size_t>(number, tokens.size());
      t.attach(again.node, slots);
      Tokens prefix = tokens;
      for (std::size_t i = 0; i < slots; ++i, prefix.pop_back()) has.at(prefix) = true;
    } else if (what == 3) {
      t.evict_component(number);
      sync();
    }
    std::size_t best = 0, run = 0;
    Tokens prefix;
    for (std::size_t at = 0; at < tokens.size(); ++at) {
      prefix.push_back(tokens[at]);
      const auto place = has.find(prefix);
      if (place == has.end()) break;
      run = place->second ? run + 1 : 0;
      const std::size_t pages = at + 1;
      if (rules[c].rule == HitRule::kTrailingPages && run >= std::min<std::size_t>(3, pages))
        best = pages;
      if (rules[c].rule == HitRule::kLastOnly && run > 0) best = pages;
      if (rules[c].rule == HitRule::kAllPages && run == pages) best = pages;
    }
    RC_ASSERT(t.peek(tokens).device_pages == best);
    RC_ASSERT(t.match(tokens).device_pages == best);
    RC_ASSERT(t.is_valid());
  }
}

}  // namespace
}  // namespace cachalot::tier
