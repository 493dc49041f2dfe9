#include "cache_sim/reuse.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <algorithm>
#include <vector>

#include "base/rng.h"
#include "cache_sim/stream/stream_cache.h"

namespace cachalot::cache_sim {
namespace {

TEST(ReuseDistances, AreTheDistinctBlocksBetweenTwoUses) {
  ReuseDistances reuse;
  EXPECT_EQ(reuse.add(7), ReuseDistances::kFirst);
  EXPECT_EQ(reuse.add(7), 0u);
  EXPECT_EQ(reuse.add(1), ReuseDistances::kFirst);
  EXPECT_EQ(reuse.add(2), ReuseDistances::kFirst);
  EXPECT_EQ(reuse.add(1), 1u);
  EXPECT_EQ(reuse.add(7), 2u);
  EXPECT_EQ(reuse.longest(), 2u);
  EXPECT_EQ(reuse.reuses(), 3u);
}

TEST(ReuseDistances, APercentileIsNeverAboveTheLongest) {
  ReuseDistances reuse;
  EXPECT_EQ(reuse.percentile(0.5), 0.0);
  for (int round = 0; round < 2; ++round) {
    for (std::uint32_t block = 0; block < 98305; ++block) reuse.add(block);
  }
  EXPECT_EQ(reuse.longest(), 98304u);  // where its bucket begins
  EXPECT_EQ(reuse.percentile(0.99), 98304.0);
}

// Long enough that positions are moved together several times, with and without growth.
TEST(ReuseDistances, BelowTheCapacityAreTheHitsOfAnLruStream) {
  for (const std::uint32_t blocks : {50u, 3000u, 90000u}) {
    ReuseDistances reuse;
    const auto lru = make_stream_cache(eviction::PolicyKind::kLru, blocks / 3);
    base::Rng rng(blocks);
    for (int i = 0; i < 400000; ++i) {
      const auto block = static_cast<std::uint32_t>(rng.below(rng.chance(0.3) ? 40 : blocks));
      ASSERT_EQ(reuse.add(block) < blocks / 3, lru->access(block, 0)) << blocks << " " << i;
    }
  }
}

RC_GTEST_PROP(ReuseDistances, AreThoseOfAListThatIsSearched, ()) {
  const auto references =
      *rc::gen::container<std::vector<std::uint32_t>>(rc::gen::inRange<std::uint32_t>(0, 30));
  ReuseDistances reuse;
  std::vector<std::uint32_t> stack;  // the last used is in front
  for (const std::uint32_t block : references) {
    const auto at = std::find(stack.begin(), stack.end(), block);
    const std::uint64_t expected =
        at == stack.end() ? ReuseDistances::kFirst : static_cast<std::uint64_t>(at - stack.begin());
    if (at != stack.end()) stack.erase(at);
    stack.insert(stack.begin(), block);
    RC_ASSERT(reuse.add(block) == expected);
  }
}

TEST(WorkingSet, CountsDistinctBlocksInEachWindow) {
  WorkingSet set(1000);
  for (const std::uint32_t block : {1u, 2u, 1u}) set.add(block, 5);
  set.add(3, 999.5);
  set.add(1, 1000);
  set.add(1, 7500);
  EXPECT_EQ(set.windows(), 3u);
  EXPECT_EQ(set.largest_blocks(), 3u);
  EXPECT_DOUBLE_EQ(set.mean_blocks(), 5.0 / 3);
}

TEST(WorkingSet, WhatComesLateBelongsToTheWindowInHand) {
  WorkingSet set(1000);
  set.add(1, 5000);
  set.add(2, 10);
  set.add(2, 5999);
  EXPECT_EQ(set.windows(), 1u);
  EXPECT_EQ(set.largest_blocks(), 2u);
}

TEST(WorkingSet, HugeTimesAreNoEndlessWindows) {
  WorkingSet set(1);
  set.add(1, 0);
  set.add(1, 1e300);
  set.add(1, 1e300);
  EXPECT_EQ(set.largest_blocks(), 1u);
  EXPECT_GE(set.windows(), 2u);
}

}  // namespace
}  // namespace cachalot::cache_sim
