// The hit rates of a production trace: exact counts that two independent programs agreed on for LRU and
// the optimum, and for the other policies rates of the same source, to a tenth of a point.
#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <vector>

#include "cache_sim/hit_rate.h"
#include "trace/request/request_trace.h"

namespace cachalot {
namespace {

using eviction::CacheMode;
using eviction::PolicyKind;

constexpr std::uint64_t kCapacities[] = {1000,  10000,  30000,
                                         50000, 100000, cache_sim::kUnlimitedBlocks};

std::vector<cache_sim::HitRateRow> rows_of_the_conversation_trace(
    const std::vector<cache_sim::CacheSpec>& specs) {
  Result<cache_sim::HitRate> rate =
      cache_sim::HitRate::make(specs, {.spill_directory = testing::TempDir()});
  EXPECT_TRUE(rate);
  Result<trace::RequestTrace> reader = trace::RequestTrace::open(
      CACHALOT_TEST_ASSETS "/traces/conversation_trace.jsonl.gz", {.block_tokens = 512});
  EXPECT_TRUE(reader) << reader.error().message;
  trace::Request request;
  for (;;) {
    const Result<bool> more = reader->next(request);
    EXPECT_TRUE(more) << more.error().message;
    if (!more || !*more) break;
    EXPECT_TRUE(rate->add(request.hash_ids, request.input_tokens));
  }
  EXPECT_TRUE(rate->finish());
  EXPECT_EQ(rate->requests(), 12031u);
  EXPECT_EQ(rate->blocks_total(), 288500u);
  EXPECT_EQ(rate->blocks_unique(), 182790u);
  return rate->rows();
}

// `expected` has a policy and a mode each.
template <class Expected>
std::vector<cache_sim::HitRateRow> rows_at_all_capacities(const Expected& expected) {
  std::vector<cache_sim::CacheSpec> specs;
  for (const auto& e : expected) {
    for (const std::uint64_t capacity : kCapacities) specs.push_back({e.policy, e.mode, capacity});
  }
  return rows_of_the_conversation_trace(specs);
}

TEST(ConversationTrace, HasTheExactCountsOfLruAndOfTheOptimum) {
  struct Expected {
    PolicyKind policy;
    CacheMode mode;
    std::uint64_t hit_blocks[std::size(kCapacities)];
  };
  constexpr Expected kExpected[] = {
      {PolicyKind::kLru, CacheMode::kStream, {12831, 60921, 93967, 102290, 104924, 105710}},
      {PolicyKind::kLru, CacheMode::kLeaf, {12847, 61046, 93978, 102290, 104924, 105710}},
      {PolicyKind::kOpt, CacheMode::kStream, {55019, 105710, 105710, 105710, 105710, 105710}},
      {PolicyKind::kOpt, CacheMode::kLeaf, {55019, 105710, 105710, 105710, 105710, 105710}},
  };
  const std::vector<cache_sim::HitRateRow> rows = rows_at_all_capacities(kExpected);
  std::size_t row = 0;
  for (const Expected& e : kExpected) {
    for (const std::uint64_t expected : e.hit_blocks) {
      const std::string which = std::string(eviction::policy_name(e.policy)) + " " +
                                eviction::cache_mode_name(e.mode) + " at " +
                                std::to_string(rows[row].cache.capacity_blocks);
      EXPECT_EQ(rows[row].hit_blocks, expected) << which;
      EXPECT_EQ(rows[row].prefix_blocks, expected) << which;
      ++row;
    }
  }
  EXPECT_NEAR(rows[5].token_hit_rate, 0.3736, 0.00005);
  EXPECT_NEAR(rows[17].token_hit_rate, 0.3736, 0.00005);
}

TEST(ConversationTrace, HasTheRatesOfTheOtherPolicies) {
  struct Rates {
    double hit, prefix;
  };
  struct Expected {
    PolicyKind policy;
    CacheMode mode;
    Rates rates[std::size(kCapacities) - 1];
  };
  const auto same = [](double rate) { return Rates{rate, rate}; };
  const Expected kExpected[] = {
      {PolicyKind::kFifo,
       CacheMode::kStream,
       {{.0435, .0434}, {.1865, .1815}, {.3021, .2944}, {.3400, .3335}, {.3593, .3563}}},
      {PolicyKind::kLfu,
       CacheMode::kStream,
       {same(.0481), same(.1318), same(.2759), same(.3438), same(.3631)}},
      {PolicyKind::kLengthAware,
       CacheMode::kStream,
       {same(.0504), same(.1123), same(.2028), same(.2602), same(.3345)}},
      {PolicyKind::kS3Fifo,
       CacheMode::kStream,
       {same(.0556), {.1955, .1952}, {.3061, .3039}, {.3501, .3490}, {.3625, .3624}}},
      {PolicyKind::kArc,
       CacheMode::kStream,
       {same(.0529), {.2225, .2221}, {.3108, .3107}, same(.3433), same(.3631)}},
      {PolicyKind::kWTinyLfu,
       CacheMode::kStream,
       {{.0633, .0628}, {.1698, .1693}, same(.2293), same(.2637), same(.3073)}},
      {PolicyKind::kFifo,
       CacheMode::kLeaf,
       {same(.0445), same(.2109), same(.3258), same(.3544), same(.3637)}},
      {PolicyKind::kLfu,
       CacheMode::kLeaf,
       {same(.0481), same(.1317), same(.2760), same(.3439), same(.3631)}},
      {PolicyKind::kLengthAware,
       CacheMode::kLeaf,
       {same(.0502), same(.1119), same(.2027), same(.2602), same(.3344)}},
  };
  const std::vector<cache_sim::HitRateRow> rows = rows_at_all_capacities(kExpected);
  std::size_t row = 0;
  for (const Expected& e : kExpected) {
    const std::string which = std::string(eviction::policy_name(e.policy)) + " " +
                              eviction::cache_mode_name(e.mode) + " at ";
    for (const Rates& rates : e.rates) {
      const std::string at = which + std::to_string(rows[row].cache.capacity_blocks);
      EXPECT_NEAR(rows[row].hit_rate, rates.hit, 0.001) << at;
      EXPECT_NEAR(rows[row].prefix_hit_rate, rates.prefix, 0.001) << at;
      ++row;
    }
    EXPECT_EQ(rows[row].hit_blocks, 105710u) << which << "unlimited capacity";
    ++row;
  }
}

}  // namespace
}  // namespace cachalot
