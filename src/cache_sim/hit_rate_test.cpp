#include "cache_sim/hit_rate.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <string>
#include <vector>

namespace cachalot::cache_sim {
namespace {

using Ids = std::vector<std::uint64_t>;

HitRate make(std::vector<CacheSpec> caches, std::uint64_t block_tokens = 512) {
  Result<HitRate> result = HitRate::make(caches, {.block_tokens = block_tokens});
  EXPECT_TRUE(result);
  return *std::move(result);
}

TEST(HitRate, CountsBlocksAndTokensOfASmallTrace) {
  HitRate rate =
      make({{eviction::PolicyKind::kLru, eviction::CacheMode::kLeaf, kUnlimitedBlocks}}, 10);
  ASSERT_TRUE(rate.add(Ids{1, 2, 3}, 25));
  ASSERT_TRUE(rate.add(Ids{1, 2, 3}, 25));  // 3 blocks hit, of 25 tokens all
  ASSERT_TRUE(rate.add(Ids{1, 4}, 20));     // 10 of 20
  const HitRateRow row = rate.rows().at(0);
  EXPECT_EQ(rate.requests(), 3u);
  EXPECT_EQ(rate.blocks_total(), 8u);
  EXPECT_EQ(rate.blocks_unique(), 4u);
  EXPECT_EQ(row.hit_blocks, 4u);
  EXPECT_EQ(row.prefix_blocks, 4u);
  EXPECT_DOUBLE_EQ(row.hit_rate, 0.5);
  EXPECT_DOUBLE_EQ(row.prefix_hit_rate, 0.5);
  EXPECT_DOUBLE_EQ(row.token_hit_rate, 0.5);  // 35 of 70
}

TEST(HitRate, AnIdBelowAnotherParentOrTwiceInARequestIsAnotherBlock) {
  HitRate rate =
      make({{eviction::PolicyKind::kLru, eviction::CacheMode::kLeaf, kUnlimitedBlocks},
            {eviction::PolicyKind::kLru, eviction::CacheMode::kStream, kUnlimitedBlocks}});
  ASSERT_TRUE(rate.add(Ids{1, 1, 1}, 1536));
  ASSERT_TRUE(rate.add(Ids{2, 1}, 1024));
  EXPECT_EQ(rate.blocks_unique(), 5u);
  for (const HitRateRow& row : rate.rows()) EXPECT_EQ(row.hit_blocks, 0u);
  ASSERT_TRUE(rate.add(Ids{1, 1}, 1024));
  for (const HitRateRow& row : rate.rows()) EXPECT_EQ(row.hit_blocks, 2u);
}

TEST(HitRate, RequestsOfTheWarmUpAreStoredButNotCounted) {
  Result<HitRate> rate = HitRate::make(
      std::vector<CacheSpec>{
          {eviction::PolicyKind::kLru, eviction::CacheMode::kLeaf, kUnlimitedBlocks},
          {eviction::PolicyKind::kOpt, eviction::CacheMode::kLeaf, kUnlimitedBlocks}},
      {.block_tokens = 10, .warmup_requests = 2});
  ASSERT_TRUE(rate);
  ASSERT_TRUE(rate->add(Ids{1, 2}, 20));
  ASSERT_TRUE(rate->add(Ids{1, 2}, 20));     // would hit 2 blocks
  ASSERT_TRUE(rate->add(Ids{1, 2, 3}, 25));  // hits 20 of 25 tokens
  ASSERT_TRUE(rate->finish());
  EXPECT_EQ(rate->blocks_total(), 7u);
  for (const HitRateRow& row : rate->rows()) {
    EXPECT_EQ(row.hit_blocks, 2u);
    EXPECT_EQ(row.prefix_blocks, 2u);
    EXPECT_EQ(row.hit_tokens, 20u);
    EXPECT_EQ(row.tokens, 25u);
    EXPECT_DOUBLE_EQ(row.hit_rate, 2.0 / 3.0);
    EXPECT_DOUBLE_EQ(row.token_hit_rate, 0.8);
  }
}

TEST(HitRate, OfNoRequestsIsZeroAndNotAFault) {
  const HitRate rate = make({CacheSpec{}});
  EXPECT_EQ(rate.rows().at(0).hit_rate, 0);
  EXPECT_EQ(rate.rows().at(0).token_hit_rate, 0);
}

TEST(HitRate, AFloorTraceMayHaveTokensWithoutABlock) {
  HitRate rate = make({CacheSpec{}}, 10);
  ASSERT_TRUE(rate.add(Ids{}, 9));
  ASSERT_TRUE(rate.add(Ids{5}, 19));
  ASSERT_TRUE(rate.add(Ids{5}, 12));
  EXPECT_DOUBLE_EQ(rate.rows().at(0).token_hit_rate, 10.0 / 40.0);
}

TEST(HitRate, RefusesZeroesAndNothingToCount) {
  const std::vector<CacheSpec> zero = {{eviction::PolicyKind::kLru, eviction::CacheMode::kLeaf, 0}};
  EXPECT_EQ(HitRate::make(zero, {}).error().code, Code::kInvalidArgument);
  EXPECT_EQ(HitRate::make({}, {}).error().code, Code::kInvalidArgument);
  const std::vector<CacheSpec> good = {CacheSpec{}};
  EXPECT_EQ(HitRate::make(good, {.block_tokens = 0}).error().code, Code::kInvalidArgument);
}

TEST(HitRate, TokensBeyond64BitsAreAnErrorAndNotASmallNumber) {
  HitRate rate = make({CacheSpec{}});
  ASSERT_TRUE(rate.add(Ids{1}, std::uint64_t{1} << 63));
  ASSERT_TRUE(rate.add(Ids{1}, (std::uint64_t{1} << 63) - 1));
  const Status status = rate.add(Ids{1}, 1);
  ASSERT_FALSE(status);
  EXPECT_EQ(status.error().code, Code::kBadInput);
  EXPECT_EQ(rate.requests(), 2u);
}

TEST(HitRate, BlocksTimesTokensBeyond64BitsCountAsTheWholeInput) {
  HitRate rate = make({CacheSpec{}}, std::uint64_t{1} << 63);
  ASSERT_TRUE(rate.add(Ids{1, 2}, 100));
  ASSERT_TRUE(rate.add(Ids{1, 2}, 100));
  EXPECT_DOUBLE_EQ(rate.rows().at(0).token_hit_rate, 0.5);
}

RC_GTEST_PROP(HitRate, GrowsWithTheCapacityOfAnLruStream, ()) {
  HitRate rate = make({{eviction::PolicyKind::kLru, eviction::CacheMode::kStream, 2},
                       {eviction::PolicyKind::kLru, eviction::CacheMode::kStream, 5},
                       {eviction::PolicyKind::kLru, eviction::CacheMode::kStream, kUnlimitedBlocks},
                       {eviction::PolicyKind::kLru, eviction::CacheMode::kLeaf, kUnlimitedBlocks}});
  const auto requests = *rc::gen::container<std::vector<Ids>>(
      rc::gen::container<Ids>(rc::gen::inRange<std::uint64_t>(0, 4)));
  for (const Ids& ids : requests) RC_ASSERT(rate.add(ids, ids.size() * 512).ok());
  const std::vector<HitRateRow> rows = rate.rows();
  RC_ASSERT(rows[0].hit_blocks <= rows[1].hit_blocks);
  RC_ASSERT(rows[1].hit_blocks <= rows[2].hit_blocks);
  for (const std::size_t unlimited : {2, 3}) {
    RC_ASSERT(rows[unlimited].hit_blocks == rate.blocks_total() - rate.blocks_unique());
    RC_ASSERT(rows[unlimited].prefix_blocks == rows[unlimited].hit_blocks);
  }
}

}  // namespace
}  // namespace cachalot::cache_sim
