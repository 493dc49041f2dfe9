#include "eviction/leaf_order.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

namespace cachalot::eviction {
namespace {

LeafHistory leaf(std::uint64_t stored_at, std::uint64_t used_at, std::uint32_t uses,
                 std::int32_t priority = 0, std::uint32_t depth = 0) {
  LeafHistory history;
  history.stored_at = stored_at;
  history.used_at = used_at;
  history.uses = uses;
  history.depth = depth;
  history.priority = priority;
  return history;
}

// Case 20: which of two leaves each order evicts first.
TEST(LeafOrder, RanksByWhatItsNameSays) {
  const auto first = [](LeafOrderKind kind, const LeafHistory& a, const LeafHistory& b) {
    const LeafOrder order{.kind = kind};
    return order.rank(a) < order.rank(b);
  };
  EXPECT_TRUE(first(LeafOrderKind::kLru, leaf(9, 3, 9), leaf(1, 4, 1)));
  EXPECT_TRUE(first(LeafOrderKind::kMru, leaf(9, 4, 9), leaf(1, 3, 1)));
  EXPECT_TRUE(first(LeafOrderKind::kFifo, leaf(1, 9, 9), leaf(2, 3, 1)));
  EXPECT_TRUE(first(LeafOrderKind::kFilo, leaf(2, 3, 1), leaf(1, 9, 9)));
  EXPECT_TRUE(first(LeafOrderKind::kLfu, leaf(2, 9, 4), leaf(1, 3, 5)));
  EXPECT_TRUE(first(LeafOrderKind::kLfu, leaf(2, 2, 5), leaf(1, 3, 5)));
  EXPECT_TRUE(first(LeafOrderKind::kPriority, leaf(2, 9, 4, 1), leaf(1, 3, 5, 2)));
  EXPECT_TRUE(first(LeafOrderKind::kPriority, leaf(2, 9, 4, -1), leaf(1, 3, 5, 0)));
  EXPECT_TRUE(first(LeafOrderKind::kPriority, leaf(2, 2, 4, 2), leaf(1, 3, 5, 2)));
  EXPECT_TRUE(first(LeafOrderKind::kLengthAware, leaf(2, 9, 4, 0, 8), leaf(1, 3, 4, 0, 2)));
}

// Case 20: [(uses, last use)] = [(5, 1), (0, 10), (0, 2), (3, 8)].
TEST(LeafOrder, SlruEvictsProbationaryLeavesBeforeProtectedOnes) {
  const LeafOrder slru{.kind = LeafOrderKind::kSlru};
  std::vector<LeafHistory> leaves = {leaf(0, 1, 5), leaf(0, 10, 0), leaf(0, 2, 0), leaf(0, 8, 3)};
  std::sort(leaves.begin(), leaves.end(), [&](const LeafHistory& a, const LeafHistory& b) {
    return slru.rank(a) < slru.rank(b);
  });
  EXPECT_EQ(leaves[0].used_at, 2u);
  EXPECT_EQ(leaves[1].used_at, 10u);
  EXPECT_EQ(leaves[2].used_at, 1u);
  EXPECT_EQ(leaves[3].used_at, 8u);
}

// Case 20.
TEST(LeafOrder, SlruProtectsFromTheThresholdOn) {
  const LeafOrder two{.kind = LeafOrderKind::kSlru};
  const LeafOrder five{.kind = LeafOrderKind::kSlru, .protected_uses = 5};
  EXPECT_EQ(two.rank(leaf(0, 7, 1)), (Rank{0, 7}));
  EXPECT_EQ(two.rank(leaf(0, 7, 2)), (Rank{1, 7}));
  EXPECT_EQ(five.rank(leaf(0, 7, 4)), (Rank{0, 7}));
  EXPECT_EQ(five.rank(leaf(0, 7, 5)), (Rank{1, 7}));
}

// Case 20.
TEST(LeafOrder, IsFoundByItsNameInAnyCase) {
  for (const char* name : {"slru", "SLRU", "Slru"}) {
    const Result<LeafOrder> order = parse_leaf_order(name);
    ASSERT_TRUE(order) << name;
    EXPECT_EQ(order->kind, LeafOrderKind::kSlru);
  }
}

// Case 20.
TEST(LeafOrder, AnUnknownNameIsAnErrorThatListsAll) {
  for (const char* name : {"lruu", "lr", ""}) {
    const Result<LeafOrder> order = parse_leaf_order(name);
    ASSERT_FALSE(order) << name;
    EXPECT_EQ(order.error().code, Code::kInvalidArgument);
    EXPECT_NE(std::string(order.error().message)
                  .find("lru, lfu, fifo, length_aware, slru, priority, mru, filo"),
              std::string::npos)
        << order.error().message;
  }
}

}  // namespace
}  // namespace cachalot::eviction
