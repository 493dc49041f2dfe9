#include "cache_sim/cache_model.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

namespace cachalot::cache_sim {
namespace {

using Path = std::vector<std::uint32_t>;

std::unique_ptr<CacheModel> make(eviction::CacheMode mode, std::uint64_t capacity_blocks) {
  auto cache = make_cache_model({eviction::PolicyKind::kLru, mode, capacity_blocks});
  EXPECT_TRUE(cache);
  return *std::move(cache);
}

TEST(StreamCache, MayLoseTheHeadOfAPrefixAndKeepItsTail) {
  const auto cache = make(eviction::CacheMode::kStream, 2);
  cache->access(Path{0, 1, 2});  // 0 is gone
  const CacheModel::Hits hits = cache->access(Path{0, 1, 2});
  EXPECT_EQ(hits.blocks, 0u);  // 0 drives out 1, 1 drives out 2
  cache->access(Path{1, 2});
  const CacheModel::Hits gap = cache->access(Path{2, 5, 1});
  EXPECT_EQ(gap.blocks, 1u);
  EXPECT_EQ(gap.prefix, 1u);
}

TEST(StreamCache, HitsBehindAGapAreNoPrefix) {
  const auto cache = make(eviction::CacheMode::kStream, 3);
  cache->access(Path{1, 2});
  const CacheModel::Hits hits = cache->access(Path{0, 1, 2});
  EXPECT_EQ(hits.blocks, 2u);
  EXPECT_EQ(hits.prefix, 0u);
}

TEST(LeafCache, DoesNotStoreTheRestOfARequestLongerThanItself) {
  const auto cache = make(eviction::CacheMode::kLeaf, 2);
  EXPECT_EQ(cache->access(Path{0, 1, 2, 3}).blocks, 0u);
  EXPECT_EQ(cache->resident_blocks(), 2u);
  const CacheModel::Hits hits = cache->access(Path{0, 1, 2, 3});
  EXPECT_EQ(hits.blocks, 2u);
  EXPECT_EQ(hits.prefix, 2u);
}

TEST(LeafCache, OfOneBlockHoldsTheRootOfTheLastRequest) {
  const auto cache = make(eviction::CacheMode::kLeaf, 1);
  cache->access(Path{0, 1});
  cache->access(Path{2, 3});
  EXPECT_EQ(cache->access(Path{0, 1}).blocks, 0u);
  EXPECT_EQ(cache->access(Path{0, 1}).blocks, 1u);
}

TEST(LeafCache, AHitIsAUseThatKeepsThePathLongerThanOthers) {
  const auto cache = make(eviction::CacheMode::kLeaf, 4);
  cache->access(Path{0, 1});
  cache->access(Path{2, 3});
  cache->access(Path{0, 1});
  cache->access(Path{4, 5});  // drives 3 and 2 out
  EXPECT_EQ(cache->access(Path{0, 1}).blocks, 2u);
  EXPECT_EQ(cache->access(Path{2, 3}).blocks, 0u);
}

TEST(CacheModel, UnlimitedOrHugeCapacityTakesOnlyTheMemoryItNeeds) {
  for (const eviction::CacheMode mode :
       {eviction::CacheMode::kStream, eviction::CacheMode::kLeaf}) {
    for (const std::uint64_t capacity : {kUnlimitedBlocks, std::uint64_t{1} << 63}) {
      const auto cache = make(mode, capacity);
      for (std::uint32_t n = 0; n < 5000; ++n) cache->access(Path{n});
      EXPECT_EQ(cache->resident_blocks(), 5000u);
      EXPECT_EQ(cache->access(Path{0}).blocks, 1u);
    }
  }
}

TEST(CacheModel, APolicyWithoutTheModeIsAnErrorThatListsThoseThatHaveIt) {
  for (const eviction::PolicyKind kind : {eviction::PolicyKind::kArc, eviction::PolicyKind::kS3Fifo,
                                          eviction::PolicyKind::kWTinyLfu}) {
    const auto cache = make_cache_model({kind, eviction::CacheMode::kLeaf, 10});
    ASSERT_FALSE(cache);
    EXPECT_EQ(cache.error().code, Code::kInvalidArgument);
    EXPECT_EQ(std::string(cache.error().message),
              std::string("policy: ") + eviction::policy_name(kind) +
                  " has no leaf mode, expected one of: " +
                  eviction::policy_names(eviction::CacheMode::kLeaf));
  }
  EXPECT_FALSE(make_cache_model({eviction::PolicyKind::kOpt, eviction::CacheMode::kLeaf, 10}));
}

TEST(CacheModel, CapacityZeroIsAnError) {
  const auto cache = make_cache_model({eviction::PolicyKind::kLru, eviction::CacheMode::kLeaf, 0});
  ASSERT_FALSE(cache);
  EXPECT_STREQ(cache.error().message, "capacity_blocks: 0, expected at least 1 or inf");
}

// Paths in a tree of 30 blocks whose parent is always (n - 1) / 2, or none for 0 and 1.
Path path_to(std::uint32_t block) {
  Path path = {block};
  while (path.back() > 1) path.push_back((path.back() - 1) / 2);
  std::reverse(path.begin(), path.end());
  return path;
}

RC_GTEST_PROP(CacheModel, NeverHoldsMoreThanItsCapacityAndPrefixNeverExceedsHits, ()) {
  const auto capacity = *rc::gen::inRange<std::uint64_t>(1, 20);
  const auto mode = *rc::gen::element(eviction::CacheMode::kStream, eviction::CacheMode::kLeaf);
  const auto blocks =
      *rc::gen::container<std::vector<std::uint32_t>>(rc::gen::inRange<std::uint32_t>(0, 30));
  const auto kind = *rc::gen::element(
      eviction::PolicyKind::kLru, eviction::PolicyKind::kFifo, eviction::PolicyKind::kLfu,
      eviction::PolicyKind::kLengthAware, eviction::PolicyKind::kHitDensity,
      eviction::PolicyKind::kS3Fifo, eviction::PolicyKind::kArc, eviction::PolicyKind::kWTinyLfu);
  RC_PRE(eviction::has_mode(kind, mode));
  const auto made = make_cache_model({kind, mode, capacity});
  RC_ASSERT(made.ok());
  CacheModel* const cache = made->get();
  for (const std::uint32_t block : blocks) {
    const Path path = path_to(block);
    const CacheModel::Hits hits = cache->access(path);
    RC_ASSERT(hits.prefix <= hits.blocks);
    RC_ASSERT(hits.blocks <= path.size());
    RC_ASSERT(mode == eviction::CacheMode::kStream || hits.prefix == hits.blocks);
    RC_ASSERT(cache->resident_blocks() <= capacity);
    RC_ASSERT(mode == eviction::CacheMode::kStream ||
              cache->resident_blocks() >= std::min<std::uint64_t>(capacity, path.size()));
  }
}

// Stream LRU by its definition: a hit is a block met within the last `capacity` distinct ones.
RC_GTEST_PROP(StreamCache, HitsTheLastDistinctBlocks, ()) {
  const auto capacity = *rc::gen::inRange<std::uint64_t>(1, 12);
  const auto blocks =
      *rc::gen::container<std::vector<std::uint32_t>>(rc::gen::inRange<std::uint32_t>(0, 20));
  const auto cache = make(eviction::CacheMode::kStream, capacity);
  std::vector<std::uint32_t> recent;  // newest last
  for (const std::uint32_t block : blocks) {
    const auto at = std::find(recent.begin(), recent.end(), block);
    const bool is_hit =
        at != recent.end() && static_cast<std::uint64_t>(recent.end() - at) <= capacity;
    RC_ASSERT((cache->access(Path{block}).blocks == 1) == is_hit);
    if (at != recent.end()) recent.erase(at);
    recent.push_back(block);
  }
}

}  // namespace
}  // namespace cachalot::cache_sim
