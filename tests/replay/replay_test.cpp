// Whole replays, with a keeper and engines as processes of their own.
#include <gtest/gtest.h>

#include <filesystem>
#include <string>
#include <tuple>

#include "cache_sim/hit_rate.h"
#include "replays.h"
#include "trace/request/request_trace.h"

namespace cachalot::replay {
namespace {

using memory::DomainKind;

class OneEngine : public testing::TestWithParam<std::tuple<DomainKind, std::uint64_t>> {};

// The counts of `hitrate --mode leaf` (tests/hitrate), which two independent programs agreed on.
std::uint64_t leaf_lru_hits(std::uint64_t capacity_blocks) {
  return capacity_blocks == 1000 ? 12847 : capacity_blocks == 10000 ? 61046 : 102290;
}

TEST_P(OneEngine, HitsExactlyWhatTheCacheModelHits) {
  const auto [domain, capacity] = GetParam();
  ProgressSink sink;
  const Result<ReplayReport> report = replay(conversation(domain, 1, capacity, 64), sink);
  ASSERT_TRUE(report) << report.error().message;
  EXPECT_EQ(report->requests, 12031u);
  EXPECT_EQ(report->blocks_total, 288500u);
  EXPECT_EQ(report->blocks_hit, leaf_lru_hits(capacity));
  EXPECT_EQ(report->blocks_hit_remote, 0u);
  EXPECT_EQ(report->verify_checked, report->blocks_hit);
  EXPECT_EQ(report->verify_errors, 0u);
  EXPECT_EQ(report->stale_reads_discarded, 0u);
  EXPECT_EQ(report->blocks_hit + report->blocks_written + report->blocks_unstored,
            report->blocks_total);
  EXPECT_EQ(report->evictions, report->blocks_written - capacity);
  EXPECT_EQ(report->prompt_blocks, report->blocks_total);
  EXPECT_EQ(report->used_blocks, report->blocks_hit);
}

INSTANTIATE_TEST_SUITE_P(Capacities, OneEngine,
                         testing::Combine(testing::Values(DomainKind::kCoherent,
                                                          DomainKind::kNoncoherent),
                                          testing::Values(1000, 10000, 50000)),
                         [](const auto& given) {
                           return std::string(memory::domain_name(std::get<0>(given.param))) +
                                  std::to_string(std::get<1>(given.param));
                         });

TEST(Passes, TheFirstFillsAndTheSecondHitsAllOfIt) {
  ReplayOptions options = conversation(DomainKind::kNoncoherent, 3, 20000, 64);
  options.limit_requests = 500;
  options.passes = 2;
  ProgressSink sink;
  const Result<ReplayReport> report = replay(options, sink);
  ASSERT_TRUE(report) << report.error().message;
  EXPECT_EQ(report->requests, 1000u);
  ASSERT_EQ(report->passes.size(), 2u);
  const ReplayReport::Pass &populate = report->passes[0], &hit = report->passes[1];
  EXPECT_EQ(populate.requests, 500u);
  EXPECT_EQ(hit.requests, 500u);
  EXPECT_EQ(populate.blocks_total, hit.blocks_total);
  EXPECT_LT(populate.blocks_hit, populate.blocks_total);
  EXPECT_EQ(hit.blocks_hit, hit.blocks_total);
  EXPECT_EQ(hit.blocks_written, 0u);
  EXPECT_DOUBLE_EQ(hit.token_hit_rate, 1);
  EXPECT_EQ(hit.verify_checked, hit.blocks_hit);
  EXPECT_EQ(populate.blocks_hit + hit.blocks_hit, report->blocks_hit);
  EXPECT_EQ(populate.bytes_read + hit.bytes_read, report->bytes_read);
  EXPECT_TRUE(report->is_sound());
  EXPECT_LE(populate.wall_s + hit.wall_s, report->wall_s * 1.01);
}

// By hand: the pool has room for fewer blocks than the trace, and storage for all: the second time every block is found,
// here or there, and counts once.
TEST(Passes, WithStorageTheSecondHitsAllOfIt) {
  const std::string folder = testing::TempDir() + "cachalot_replay_storage";
  std::filesystem::remove_all(folder);
  ReplayOptions options = conversation(DomainKind::kCoherent, 1, 500, 64);
  options.limit_requests = 200;
  options.passes = 2;
  options.storage.uris = {"file:" + folder};
  ProgressSink sink;
  const Result<ReplayReport> report = replay(options, sink);
  std::filesystem::remove_all(folder);
  ASSERT_TRUE(report) << report.error().message;
  ASSERT_EQ(report->passes.size(), 2u);
  const ReplayReport::Pass& hit = report->passes[1];
  EXPECT_GT(hit.blocks_total, 2 * options.capacity_blocks);
  EXPECT_EQ(hit.blocks_hit, hit.blocks_total);
  EXPECT_GT(hit.blocks_hit_storage, hit.blocks_total - 2 * options.capacity_blocks);
  EXPECT_TRUE(report->is_sound());
  EXPECT_EQ(report->prompt_blocks, report->blocks_total);
  EXPECT_EQ(report->used_blocks, report->blocks_hit);
  EXPECT_EQ(report->used_storage_blocks, report->blocks_hit_storage);
}

TEST(Passes, OnePassHasNoFiguresApart) {
  ReplayOptions options = conversation(DomainKind::kCoherent, 2, 1000, 64);
  options.limit_requests = 50;
  ProgressSink sink;
  const Result<ReplayReport> report = replay(options, sink);
  ASSERT_TRUE(report) << report.error().message;
  EXPECT_TRUE(report->passes.empty());
}

class EveryPolicy : public testing::TestWithParam<std::tuple<DomainKind, eviction::PolicyKind>> {};

// What `hitrate` computes for the same requests.
std::uint64_t computed_hits(eviction::PolicyKind policy, std::uint64_t capacity_blocks,
                            std::uint64_t requests) {
  const cache_sim::CacheSpec cache{policy, eviction::CacheMode::kLeaf, capacity_blocks};
  Result<cache_sim::HitRate> rate = cache_sim::HitRate::make({&cache, 1}, {});
  Result<trace::RequestTrace> reader = trace::RequestTrace::open(
      CACHALOT_TEST_ASSETS "/traces/conversation_trace.jsonl.gz", {.block_tokens = 512});
  EXPECT_TRUE(rate && reader);
  trace::Request request;
  while (rate->requests() < requests) {
    const Result<bool> more = reader->next(request);
    EXPECT_TRUE(more && *more);
    if (!more || !*more) break;
    EXPECT_TRUE(rate->add(request.hash_ids, request.input_tokens));
  }
  return rate->rows().front().prefix_blocks;
}

TEST_P(EveryPolicy, HitsInThePoolWhatItHitsInTheModel) {
  const auto [domain, policy] = GetParam();
  for (const std::uint64_t capacity : {100, 3000}) {
    ReplayOptions options = conversation(domain, 1, capacity, 64);
    options.policy = eviction::policy_name(policy);
    options.limit_requests = 6000;
    ProgressSink sink;
    const Result<ReplayReport> report = replay(options, sink);
    ASSERT_TRUE(report) << report.error().message;
    EXPECT_EQ(report->blocks_hit, computed_hits(policy, capacity, 6000)) << capacity;
    EXPECT_GT(report->blocks_hit, 0u);
    EXPECT_EQ(report->verify_errors, 0u);
  }
}

INSTANTIATE_TEST_SUITE_P(Policies, EveryPolicy,
                         testing::Combine(testing::Values(DomainKind::kCoherent,
                                                          DomainKind::kNoncoherent),
                                          testing::ValuesIn(eviction::pool_policies())),
                         [](const auto& given) {
                           return std::string(memory::domain_name(std::get<0>(given.param))) +
                                  eviction::policy_name(std::get<1>(given.param));
                         });

class SeveralEngines : public testing::TestWithParam<DomainKind> {};

TEST_P(SeveralEngines, ReadEachOthersBlocksUnderHeavyEvictionWithoutAWrongByte) {
  ReplayOptions options = conversation(GetParam(), 3, 500, 4096);
  options.limit_requests = 2500;
  ProgressSink sink;
  const Result<ReplayReport> report = replay(options, sink);
  ASSERT_TRUE(report) << report.error().message;
  EXPECT_EQ(report->requests, 2500u);
  EXPECT_EQ(report->verify_errors, 0u);
  EXPECT_EQ(report->damaged_reads, 0u);
  EXPECT_EQ(report->verify_checked, report->blocks_hit);
  EXPECT_EQ(report->verify_checked_bytes, report->blocks_hit * 4096);
  EXPECT_GT(report->blocks_hit_remote, 0u);
  EXPECT_LT(report->blocks_hit_remote, report->blocks_hit);
  EXPECT_GT(report->evictions, 10000u);
  EXPECT_GT(report->token_hit_rate, 0.0);
  EXPECT_TRUE(report->is_sound());
}

INSTANTIATE_TEST_SUITE_P(Domains, SeveralEngines,
                         testing::Values(DomainKind::kCoherent, DomainKind::kNoncoherent),
                         [](const auto& given) { return memory::domain_name(given.param); });

TEST(Replay, OfBlocksThatSpanStripesChecksEveryByteOfThem) {
  // 320 KiB: some of the blocks lie across the border of two devices.
  ReplayOptions options = conversation(DomainKind::kNoncoherent, 2, 100, 5 << 16);
  options.limit_requests = 60;
  options.devices = 3;
  ProgressSink sink;
  const Result<ReplayReport> report = replay(options, sink);
  ASSERT_TRUE(report) << report.error().message;
  EXPECT_GT(report->blocks_hit, 0u);
  EXPECT_EQ(report->verify_checked_bytes, report->blocks_hit * options.block_bytes);
  EXPECT_TRUE(report->is_sound());
}

TEST(Replay, LargerThanAnEnginesCacheGoesBlockByBlock) {
  ReplayOptions options = conversation(DomainKind::kCoherent, 1, 4, 66 << 20);
  options.limit_requests = 2;
  options.devices = 1;
  ProgressSink sink;
  const Result<ReplayReport> report = replay(options, sink);
  ASSERT_TRUE(report) << report.error().message;
  EXPECT_TRUE(report->is_sound());
  EXPECT_GT(report->blocks_written, 0u);
}

TEST(Replay, AtTheTracesOwnSpeedTakesNoRequestBeforeItsTime) {
  // The first 40 requests arrive within 9 s or so.
  ReplayOptions options = conversation(DomainKind::kCoherent, 2, 1000, 64);
  options.limit_requests = 40;
  const Result<Workload> load = Workload::load(options);
  ASSERT_TRUE(load);
  const double last_s = static_cast<double>(load->arrival_ns(39)) / 1e9;
  ASSERT_GT(last_s, 0.0);
  options.speed = last_s / 0.3;
  ProgressSink sink;
  const Result<ReplayReport> report = replay(options, sink);
  ASSERT_TRUE(report) << report.error().message;
  EXPECT_EQ(report->requests, 40u);
  EXPECT_GE(report->wall_s, 0.3);
}

TEST(Replay, TellsHowFarItIs) {
  struct Sink : ProgressSink {
    void on_progress(const Progress& progress) override {
      ++calls;
      last = progress;
    }
    int calls = 0;
    Progress last;
  };
  ReplayOptions options = conversation(DomainKind::kCoherent, 2, 1000, 64);
  options.limit_requests = 100;
  const Result<Workload> load = Workload::load(options);
  ASSERT_TRUE(load);
  options.speed = static_cast<double>(load->arrival_ns(99)) / 0.5e9;
  Sink sink;
  ASSERT_TRUE(replay(options, sink));
  EXPECT_GE(sink.calls, 1);
  EXPECT_EQ(sink.last.requests, 100u);
  EXPECT_GT(sink.last.requests_done, 0u);
}

}  // namespace
}  // namespace cachalot::replay
