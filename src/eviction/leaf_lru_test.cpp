#include "eviction/leaf_lru.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <algorithm>
#include <map>
#include <vector>

namespace cachalot::eviction {
namespace {

// Leaf LRU as its definition has it, by search: each node remembers when it was last used; a use is
// one of the whole prefix; the leaf whose last use is longest ago goes. Two leaves never tie: the
// nodes one use reaches are one path, and a path has one leaf.
class NaiveLeafLru {
 public:
  void use(const std::vector<NodeId>& path) {
    ++now_;
    for (const NodeId node : path) used_[node] = now_;
  }
  void add(NodeId node, NodeId parent) {
    parent_[node] = parent;
    used_[node] = now_;
  }
  void remove(NodeId node) {
    parent_.erase(node);
    used_.erase(node);
  }
  NodeId victim(NodeId protect) const {
    NodeId best = kNoNode;
    for (const auto& [node, parent] : parent_) {
      const bool has_child = std::any_of(parent_.begin(), parent_.end(),
                                         [n = node](const auto& e) { return e.second == n; });
      if (has_child || node == protect) continue;
      if (best == kNoNode || used_.at(node) < used_.at(best)) best = node;
    }
    return best;
  }

 private:
  std::map<NodeId, NodeId> parent_;
  std::map<NodeId, std::uint64_t> used_;
  std::uint64_t now_ = 0;
};

TEST(LeafLruDeathTest, RefusesToTouchOrDropWhatIsNotThere) {
  LeafLru lru(2);
  EXPECT_DEATH(lru.touch(0), "contains");
  EXPECT_DEATH(lru.touch(kNoNode), "contains");
  EXPECT_DEATH(lru.erase(1), "is_leaf");
}

// Requests over a small tree of ids (two children a node, five levels) through a small cache.
RC_GTEST_PROP(LeafLru, ChoosesTheVictimsOfTheDefinition, ()) {
  const auto capacity = *rc::gen::inRange<std::uint32_t>(1, 12);
  const auto requests = *rc::gen::container<std::vector<std::vector<bool>>>(
      rc::gen::resize(5, rc::gen::container<std::vector<bool>>(rc::gen::arbitrary<bool>())));
  LeafLru lru(64);
  NaiveLeafLru naive;
  for (const std::vector<bool>& turns : requests) {
    std::vector<NodeId> path;
    NodeId place = 1;  // numbered as in a binary heap
    for (const bool turn : turns) {
      if (path.size() == 5) break;
      path.push_back(place = place * 2 + (turn ? 1 : 0));
    }
    std::size_t hits = 0;
    while (hits < path.size() && lru.residency().contains(path[hits])) ++hits;
    NodeId tail = hits == 0 ? kNoNode : path[hits - 1];
    if (tail != kNoNode) lru.touch(tail);
    naive.use({path.begin(), path.begin() + static_cast<std::ptrdiff_t>(hits)});
    for (std::size_t i = hits; i < path.size(); ++i) {
      if (lru.residency().size() == capacity) {
        const NodeId victim = lru.victim(tail);
        RC_ASSERT(victim == naive.victim(tail));
        if (victim == kNoNode) break;
        lru.erase(victim);
        naive.remove(victim);
      }
      lru.insert(path[i], tail);
      naive.add(path[i], tail);
      tail = path[i];
      RC_ASSERT(lru.is_valid());
      RC_ASSERT(lru.residency().size() <= capacity);
    }
    RC_ASSERT(lru.is_valid());
  }
}

TEST(LeafLru, WhatIsNoLongerHeldWasJustUsed) {
  LeafLru lru(4);
  lru.insert(0, kNoNode);
  lru.insert(1, 0);
  lru.insert(2, kNoNode);
  lru.hold(1);
  lru.touch(2);
  lru.release(1);
  EXPECT_EQ(lru.victim(kNoNode), 2u);
  EXPECT_TRUE(lru.is_valid());
}

TEST(LeafLru, AChildOfAHeldNodeMayGo) {
  LeafLru lru(4);
  lru.insert(0, kNoNode);
  lru.hold(0);
  lru.insert(1, 0);
  lru.touch(1);
  EXPECT_EQ(lru.victim(kNoNode), 1u);
  lru.erase(1);
  EXPECT_EQ(lru.victim(kNoNode), kNoNode);
  EXPECT_TRUE(lru.is_valid());
}

// Victims under any protection, not only that of the request in hand; touches, inserts and holds
// anywhere.
RC_GTEST_PROP(LeafLru, IsTheOldestUnprotectedLeafInAnyState, ()) {
  constexpr NodeId kNodes = 24;
  LeafLru lru(kNodes);
  std::map<NodeId, int> holders;
  const auto is_held = [&](NodeId node) { return holders.count(node) != 0 && holders[node] > 0; };
  const auto steps = *rc::gen::container<std::vector<std::tuple<int, NodeId, NodeId>>>(
      rc::gen::tuple(rc::gen::inRange(0, 6), rc::gen::inRange<NodeId>(0, kNodes),
                     rc::gen::inRange<NodeId>(0, kNodes)));
  for (const auto& [what, node, other] : steps) {
    if (!lru.residency().contains(node)) {
      lru.insert(node, lru.residency().contains(other) ? other : kNoNode);
    } else if (what == 0 && lru.residency().is_leaf(node)) {
      lru.erase(node);
      holders.erase(node);
    } else if (what == 1) {
      lru.hold(node);
      ++holders[node];
    } else if (what == 2 && is_held(node)) {
      lru.release(node);
      --holders[node];
    } else {
      lru.touch(node);
    }
    RC_ASSERT(lru.is_valid());
    for (NodeId n = 0; n < kNodes; ++n) RC_ASSERT(!is_held(n) || lru.victim(kNoNode) != n);
    NodeId protect = lru.residency().contains(other) ? other : kNoNode;
    NodeId expected = lru.oldest();
    while (expected != kNoNode && (expected == protect || !lru.residency().is_leaf(expected))) {
      expected = lru.newer(expected);
    }
    RC_ASSERT(lru.victim(protect) == expected);
  }
}

}  // namespace
}  // namespace cachalot::eviction
