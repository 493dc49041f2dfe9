#include "trace/request/trace_summary.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <set>
#include <string>
#include <vector>

#include "trace/request/request_trace.h"

namespace cachalot::trace {
namespace {

constexpr std::uint64_t kMost = ~std::uint64_t{0};

TraceSummary summary_of(const std::vector<Request>& requests, std::uint64_t block_tokens = 10) {
  TraceSummary summary(block_tokens);
  for (const Request& request : requests) EXPECT_TRUE(summary.add(request));
  return summary;
}

TEST(TraceSummary, CountsTheConversationTraceAsTwoIndependentProgramsDid) {
  Result<RequestTrace> trace = RequestTrace::open(
      CACHALOT_TEST_ASSETS "/traces/conversation_trace.jsonl.gz", {.block_tokens = 512});
  ASSERT_TRUE(trace);
  TraceSummary summary(512);
  Request request;
  while (*trace->next(request)) ASSERT_TRUE(summary.add(request));
  EXPECT_EQ(summary.requests(), 12031u);
  EXPECT_EQ(summary.blocks_total(), 288500u);
  EXPECT_EQ(summary.blocks_unique(), 182790u);
  const IdealRates ideal = summary.ideal();
  EXPECT_EQ(ideal.hit_blocks, 105710u);
  EXPECT_NEAR(ideal.block, 0.3664, 0.00005);
  EXPECT_NEAR(ideal.token, 0.3736, 0.00005);
  EXPECT_NEAR(ideal.full_block, 0.3819, 0.00005);
  EXPECT_NEAR(ideal.mean_token, 0.4094, 0.00005);
  EXPECT_EQ(summary.inconsistent_ids(), 0u);
}

TEST(TraceSummary, MeasuresLengthsByRank) {
  std::vector<Request> requests;
  for (std::uint64_t i = 1; i <= 200; ++i) {
    requests.push_back({.timestamp_ms = 5.0 * static_cast<double>(i),
                        .input_tokens = 201 - i,
                        .output_tokens = 7,
                        .hash_ids = {}});
  }
  const TraceSummary summary = summary_of(requests);
  const Lengths input = summary.input_tokens();
  EXPECT_EQ(input.total, 20100u);
  EXPECT_EQ(input.mean, 100.5);
  EXPECT_EQ(input.p50, 100u);
  EXPECT_EQ(input.p90, 180u);
  EXPECT_EQ(input.p99, 198u);
  EXPECT_EQ(input.max, 200u);
  EXPECT_EQ(summary.output_tokens().p99, 7u);
  EXPECT_EQ(summary.first_ms(), 5);
  EXPECT_EQ(summary.last_ms(), 1000);
}

TEST(TraceSummary, AnIdBelowTwoParentsIsTwoBlocksAndInconsistent) {
  const TraceSummary summary =
      summary_of({{0, 20, 0, {1, 2}}, {0, 20, 0, {3, 2}}, {0, 20, 0, {1, 2}}});
  EXPECT_EQ(summary.blocks_unique(), 4u);
  EXPECT_EQ(summary.inconsistent_ids(), 1u);
  EXPECT_EQ(summary.ideal().hit_blocks, 2u);
}

TEST(TraceSummary, DuplicateIdsWithinARequestAreInconsistent) {
  const TraceSummary summary = summary_of({{0, 30, 0, {5, 5, 5}}, {0, 30, 0, {5, 5, 5}}});
  EXPECT_EQ(summary.blocks_unique(), 3u);
  EXPECT_EQ(summary.inconsistent_ids(), 1u);
  EXPECT_EQ(summary.ideal().hit_blocks, 3u);
}

TEST(TraceSummary, NothingGivesNoRates) {
  const TraceSummary summary = summary_of({});
  EXPECT_EQ(summary.ideal().token, 0);
  EXPECT_EQ(summary.input_tokens().max, 0u);
}

TEST(TraceSummary, RefusesLengthsThatDoNotAddUp) {
  TraceSummary summary(10);
  EXPECT_TRUE(summary.add({0, kMost, 0, {}}));
  const Status refused = summary.add({0, 1, 0, {}});
  ASSERT_FALSE(refused);
  EXPECT_STREQ(refused.error().message, "the input lengths of its requests exceed 2^64 tokens");
  EXPECT_FALSE(summary.add({0, 0, kMost, {}}) && summary.add({0, 0, 1, {}}));
}

RC_GTEST_PROP(TraceSummary, HitsTheLeadingBlocksThatASetHasSeen,
              (const std::vector<std::vector<std::uint8_t>>& requests)) {
  TraceSummary summary(10);
  std::set<std::vector<std::uint64_t>> seen;
  std::uint64_t hits = 0, blocks = 0;
  for (const auto& request : requests) {
    const std::vector<std::uint64_t> ids(request.begin(), request.end());
    RC_ASSERT(summary.add({0, ids.size() * 10, 0, ids}).ok());
    for (std::size_t i = 1; i <= ids.size(); ++i) {
      const auto prefix = std::vector(ids.begin(), ids.begin() + static_cast<std::ptrdiff_t>(i));
      hits += seen.insert(prefix).second ? 0 : 1;
      ++blocks;
    }
  }
  RC_ASSERT(summary.ideal().hit_blocks == hits);
  RC_ASSERT(summary.blocks_unique() == seen.size());
  RC_ASSERT(summary.blocks_total() == blocks);
}

}  // namespace
}  // namespace cachalot::trace
