#include "sim/cluster/prefix_cache.h"

#include <gtest/gtest.h>

#include <vector>

namespace cachalot::sim {
namespace {

using Path = std::vector<std::uint32_t>;

TEST(PrefixCache, HoldsPrefixesAndEvictsTheLeastRecentlyUsedLeaf) {
  PrefixCache cache(eviction::PolicyKind::kLru, 4);
  EXPECT_EQ(cache.store(Path{0, 1}), 2u);
  EXPECT_EQ(cache.store(Path{2, 3}), 2u);
  EXPECT_EQ(cache.store(Path{0, 4}), 2u);  // in the place of 1
  EXPECT_EQ(cache.match(Path{0, 1}), 1u);
  EXPECT_EQ(cache.match(Path{2, 3}), 2u);
  EXPECT_EQ(cache.size(), 4u);
  EXPECT_EQ(cache.evictions(), 1u);
}

TEST(PrefixCache, WhatIsHeldStaysAndTheRestOfAPathIsNotStored) {
  PrefixCache cache(eviction::PolicyKind::kLru, 2);
  cache.store(Path{0, 1});
  cache.hold(Path{0, 1});
  EXPECT_EQ(cache.store(Path{5, 6}), 0u);
  cache.release(Path{0, 1});
  EXPECT_EQ(cache.store(Path{5, 6, 7}), 2u);
  EXPECT_EQ(cache.match(Path{0, 1}), 0u);
}

TEST(PrefixCache, WithoutCapacityHoldsNothing) {
  PrefixCache cache(eviction::PolicyKind::kLru, 0);
  EXPECT_EQ(cache.store(Path{0, 1}), 0u);
  EXPECT_EQ(cache.match(Path{0}), 0u);
}

}  // namespace
}  // namespace cachalot::sim
