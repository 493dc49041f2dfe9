#include "eviction/hit_density.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <algorithm>
#include <cstdint>
#include <map>
#include <vector>

#include "base/rng.h"
#include "eviction/leaf_lru.h"

namespace cachalot::eviction {
namespace {

using Path = std::vector<std::uint64_t>;  // names

// A cache as a keeper has it: nodes given from a list of free ones, in an order of the caller's.
template <class Policy>
class Cache {
 public:
  explicit Cache(std::uint32_t capacity, bool is_reversed = false, bool is_batched = false)
      : policy(capacity), is_batched_(is_batched) {
    for (NodeId n = 0; n < capacity; ++n) free_.push_back(is_reversed ? n : capacity - 1 - n);
  }

  void request(const Path& path) {
    std::size_t found = 0;
    NodeId tail = kNoNode;
    for (; found < path.size() && node_of_.count(path[found]) != 0; ++found) {
      tail = node_of_[path[found]];
    }
    hits += found;
    if (tail != kNoNode) policy.touch(tail);
    const std::size_t missing = path.size() - found;
    while (is_batched_ && free_.size() < missing && make_room(tail)) {
    }
    for (std::size_t i = found; i < path.size(); ++i) {
      if (free_.empty() && (is_batched_ || !make_room(tail))) break;
      const NodeId node = free_.back();
      free_.pop_back();
      policy.insert(node, tail, path[i]);
      node_of_[path[i]] = node;
      name_of_[node] = path[i];
      tail = node;
    }
  }

  Policy policy;
  std::uint64_t hits = 0;

 private:
  bool make_room(NodeId tail) {
    const NodeId victim = policy.victim(tail);
    if (victim == kNoNode) return false;
    policy.erase(victim);
    node_of_.erase(name_of_[victim]);
    free_.push_back(victim);
    return true;
  }

  bool is_batched_;
  std::vector<NodeId> free_;
  std::map<std::uint64_t, NodeId> node_of_;
  std::map<NodeId, std::uint64_t> name_of_;
};

// Conversations that go on among requests that never come back.
std::vector<Path> chats_and_scans(int requests, int sessions) {
  base::Rng rng(1);
  std::uint64_t next = 1;
  std::vector<Path> open(static_cast<std::size_t>(sessions));
  std::vector<Path> all;
  for (int i = 0; i < requests; ++i) {
    if (rng.below(4) != 0) {
      Path once;
      for (int k = 0; k < 12; ++k) once.push_back(next++);
      all.push_back(once);
      continue;
    }
    Path& chat = open[rng.below(open.size())];
    if (chat.size() > 40) chat.clear();
    for (int k = 0; k < 4; ++k) chat.push_back(next++);
    all.push_back(chat);
  }
  return all;
}

// Any requests: over a tree of two children a node, five levels.
rc::Gen<std::vector<Path>> small_requests() {
  return rc::gen::map(rc::gen::container<std::vector<std::vector<bool>>>(rc::gen::resize(
                          5, rc::gen::container<std::vector<bool>>(rc::gen::arbitrary<bool>()))),
                      [](const std::vector<std::vector<bool>>& requests) {
                        std::vector<Path> paths;
                        for (const std::vector<bool>& turns : requests) {
                          Path path;
                          std::uint64_t place = 1;  // numbered as in a binary heap
                          for (const bool turn : turns) {
                            if (path.size() < 5) path.push_back(place = place * 2 + (turn ? 1 : 0));
                          }
                          paths.push_back(path);
                        }
                        return paths;
                      });
}

TEST(HitDensity, BeginsAsLeafLru) {
  HitDensity policy(4);
  policy.insert(0, kNoNode, 10);
  policy.insert(1, 0, 11);
  policy.insert(2, kNoNode, 12);
  EXPECT_EQ(policy.victim(kNoNode), 1u);
  policy.touch(1);
  EXPECT_EQ(policy.victim(kNoNode), 2u);
  EXPECT_FALSE(policy.follows_density());
}

TEST(HitDensity, ProtectingTheTailProtectsThePath) {
  HitDensity policy(4);
  policy.insert(0, kNoNode, 10);
  policy.insert(1, 0, 11);
  policy.insert(2, 1, 12);
  policy.insert(3, kNoNode, 13);
  EXPECT_EQ(policy.victim(2), 3u);
  policy.erase(3);
  EXPECT_EQ(policy.victim(2), kNoNode);
  EXPECT_TRUE(policy.is_valid());
}

TEST(HitDensity, TwoBlocksOfOneNameBreakNothing) {
  HitDensity policy(4);
  policy.insert(0, kNoNode, 7);
  policy.insert(1, 0, 7);
  policy.insert(2, kNoNode, 7);
  EXPECT_TRUE(policy.is_valid());
  policy.erase(1);
  policy.erase(0);
  policy.insert(0, 2, 7);
  EXPECT_TRUE(policy.is_valid());
}

TEST(HitDensity, KeepsConversationsThatLruLosesToAScan) {
  Cache<LeafLru> lru(600);
  Cache<HitDensity> density(600);
  std::uint64_t blocks = 0;
  for (const Path& path : chats_and_scans(20000, 60)) {
    blocks += path.size();
    lru.request(path);
    density.request(path);
  }
  EXPECT_TRUE(density.policy.follows_density());
  EXPECT_GT(density.hits, lru.hits + blocks / 50);
  EXPECT_TRUE(density.policy.is_valid());
}

TEST(HitDensity, NumbersOfNodesChangeNothing) {
  Cache<HitDensity> one(300);
  Cache<HitDensity> other(300, /*is_reversed=*/true);
  for (const Path& path : chats_and_scans(8000, 60)) {
    one.request(path);
    other.request(path);
    ASSERT_EQ(one.hits, other.hits);
  }
}

TEST(HitDensityDeathTest, RefusesToTouchOrDropWhatIsNotThere) {
  HitDensity policy(2);
  EXPECT_DEATH(policy.touch(0), "contains");
  EXPECT_DEATH(policy.touch(kNoNode), "contains");
  EXPECT_DEATH(policy.erase(1), "is_leaf");
}

// The guard is as good as its shadow: that must be leaf LRU, hit for hit, whatever is asked for.
RC_GTEST_PROP(HitDensity, ItsShadowIsLeafLru, ()) {
  const auto capacity = *rc::gen::inRange<std::uint32_t>(1, 12);
  const auto requests = *small_requests();
  const bool is_batched = *rc::gen::arbitrary<bool>();
  Cache<LeafLru> lru(capacity);
  Cache<HitDensity> density(capacity, false, is_batched);
  for (const Path& path : requests) {
    density.request(path);
    RC_ASSERT(density.policy.is_valid());
    lru.request(path);
    density.request({1});  // ends the request in hand: a root of its own
    lru.request({1});
  }
  density.request({1});
  RC_ASSERT(density.policy.shadow_hits(Shadow::kLru) == lru.hits);
}

// Any calls at all: the victim is a leaf that is neither protected nor held, and there is one if
// there can be.
RC_GTEST_PROP(HitDensity, VictimsAreFreeLeavesInAnyState, ()) {
  constexpr NodeId kNodes = 24;
  HitDensity policy(kNodes);
  std::vector<int> holders(kNodes, 0);
  const auto steps = *rc::gen::container<std::vector<std::tuple<int, NodeId, NodeId, int>>>(
      rc::gen::tuple(rc::gen::inRange(0, 6), rc::gen::inRange<NodeId>(0, kNodes),
                     rc::gen::inRange<NodeId>(0, kNodes), rc::gen::inRange(0, 40)));
  for (const auto& [what, node, other, name] : steps) {
    const Residency& r = policy.residency();
    if (!r.contains(node)) {
      policy.insert(node, r.contains(other) ? other : kNoNode, static_cast<std::uint64_t>(name));
    } else if (what == 0 && r.is_leaf(node)) {
      policy.erase(node);
      holders[node] = 0;
    } else if (what == 1) {
      policy.hold(node);
      ++holders[node];
    } else if (what == 2 && holders[node] > 0) {
      policy.release(node);
      --holders[node];
    } else {
      policy.touch(node);
    }
    RC_ASSERT(policy.is_valid());
    const NodeId protect = r.contains(other) ? other : kNoNode;
    const NodeId victim = policy.victim(protect);
    const auto is_free = [&](NodeId n) { return r.is_leaf(n) && n != protect && holders[n] == 0; };
    bool is_any = false;
    for (NodeId n = 0; n < kNodes; ++n) is_any = is_any || is_free(n);
    RC_ASSERT(is_any == (victim != kNoNode));
    RC_ASSERT(victim == kNoNode || is_free(victim));
  }
}

}  // namespace
}  // namespace cachalot::eviction
