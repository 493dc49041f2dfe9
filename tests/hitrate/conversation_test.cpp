// The hit rates of a production trace, against counts that two independent programs agreed on.
#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <vector>

#include "index/hit_rate/hit_rate.h"
#include "trace/request_trace.h"

namespace cachalot {
namespace {

using index::CacheMode;

struct Expected {
  CacheMode mode;
  std::uint64_t capacity_blocks;
  std::uint64_t hit_blocks;
};

constexpr Expected kLruCounts[] = {
    {CacheMode::kStream, 1000, 12831},    {CacheMode::kStream, 10000, 60921},
    {CacheMode::kStream, 30000, 93967},   {CacheMode::kStream, 50000, 102290},
    {CacheMode::kStream, 100000, 104924}, {CacheMode::kStream, index::kUnlimitedBlocks, 105710},
    {CacheMode::kLeaf, 1000, 12847},      {CacheMode::kLeaf, 10000, 61046},
    {CacheMode::kLeaf, 30000, 93978},     {CacheMode::kLeaf, 50000, 102290},
    {CacheMode::kLeaf, 100000, 104924},   {CacheMode::kLeaf, index::kUnlimitedBlocks, 105710},
};

TEST(ConversationTrace, HasTheExactLruHitCountsInBothModesAtEveryCapacity) {
  std::vector<index::CacheSpec> specs;
  for (const Expected& e : kLruCounts) {
    specs.push_back({index::PolicyKind::kLru, e.mode, e.capacity_blocks});
  }
  Result<index::HitRate> rate = index::HitRate::make(specs, {});
  ASSERT_TRUE(rate);
  Result<trace::RequestTrace> reader = trace::RequestTrace::open(
      CACHALOT_TEST_ASSETS "/traces/conversation_trace.jsonl.gz", {.block_tokens = 512});
  ASSERT_TRUE(reader) << reader.error().message;
  trace::Request request;
  for (;;) {
    const Result<bool> more = reader->next(request);
    ASSERT_TRUE(more) << more.error().message;
    if (!*more) break;
    ASSERT_TRUE(rate->add(request.hash_ids, request.input_tokens));
  }
  EXPECT_EQ(rate->requests(), 12031u);
  EXPECT_EQ(rate->blocks_total(), 288500u);
  EXPECT_EQ(rate->blocks_unique(), 182790u);
  const std::vector<index::HitRateRow> rows = rate->rows();
  for (std::size_t i = 0; i < rows.size(); ++i) {
    const std::string which = std::string(index::cache_mode_name(rows[i].cache.mode)) + " at " +
                              std::to_string(rows[i].cache.capacity_blocks);
    EXPECT_EQ(rows[i].hit_blocks, kLruCounts[i].hit_blocks) << which;
    EXPECT_EQ(rows[i].prefix_blocks, kLruCounts[i].hit_blocks) << which;
  }
  EXPECT_NEAR(rows[5].token_hit_rate, 0.3736, 0.00005);
}

}  // namespace
}  // namespace cachalot
