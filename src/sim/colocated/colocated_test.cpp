#include "sim/colocated/colocated.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <cmath>
#include <vector>

#include "sim/cluster/cluster_test_loads.h"

namespace cachalot::sim {
namespace {

// A step takes 1 ms for each token of a prompt, and 100 ms if it decodes.
class PlainTiming final : public sched::TimingModel {
 public:
  double step_seconds(std::span<const sched::PrefillPart> prefill,
                      const sched::DecodePart& decode) const override {
    double seconds = decode.sequences == 0 ? 0 : 0.1;
    for (const sched::PrefillPart& part : prefill)
      seconds += 0.001 * static_cast<double>(part.new_tokens);
    return seconds;
  }
  double prefill_seconds(std::uint64_t input, std::uint64_t hit) const override {
    return hit >= input ? 0 : 0.001 * static_cast<double>(input - hit);
  }
};

const PlainTiming kTiming;
const ClusterTiming kTimings = {&kTiming, &kTiming};

ColocatedOptions small_cluster(std::uint32_t instances) {
  ColocatedOptions options;
  options.cluster.prefill = instances;
  options.cluster.kv_bytes_per_token = 1;
  options.cluster.link = {.latency_s = 0, .bytes_per_s = 1000};
  options.cluster.pool_link = options.cluster.link;
  options.cluster.routing.kind = sched::RoutingKind::kLeastLoaded;
  options.engine = {.blocks = 200,
                    .block_tokens = 10,
                    .max_sequences = 8,
                    .step_tokens = 200,
                    .async_scheduling = false};
  return options;
}

// A step takes 1 ms for each token of a prompt, and 0.1 ms for each token that its decodes have.
class ContextTiming final : public sched::TimingModel {
 public:
  double step_seconds(std::span<const sched::PrefillPart> prefill,
                      const sched::DecodePart& decode) const override {
    double seconds = 0.0001 * static_cast<double>(decode.context_tokens);
    for (const sched::PrefillPart& part : prefill)
      seconds += 0.001 * static_cast<double>(part.new_tokens);
    return seconds;
  }
  double prefill_seconds(std::uint64_t input, std::uint64_t hit) const override {
    return kTiming.prefill_seconds(input, hit);
  }
};

const ContextTiming kContextTiming;
const ClusterTiming kContextTimings = {&kContextTiming, &kContextTiming};

ColocatedOptions predictive_cluster(double tbt_slo_s) {
  ColocatedOptions options = small_cluster(1);
  options.engine.blocks = 1000;
  options.cluster.admission.kind = sched::AdmissionKind::kPredictive;
  options.cluster.admission.tbt_slo_s = tbt_slo_s;
  return options;
}

TEST(Colocated, ADecodeThatIsOlderThanADecodeTakesIsExpectedToHaveEnded) {
  // Request 0 decodes from 1 s on, far longer than the second that a decode is to take. With its 1,000 tokens request 1
  // would have 0.16 s, without them 0.06 s.
  const Workload workload = workload_of({{0, 1000, 1000}, {5, 600, 1}}, {{1}, {2}});
  ColocatedOptions options = predictive_cluster(0.15);
  options.cluster.admission.prediction = sched::DecodePrediction::kUniform;
  options.cluster.assumed_decode_s = 1;
  const Result<ClusterReport> report = simulate_colocated(options, workload, kContextTimings);
  ASSERT_TRUE(report);
  EXPECT_EQ(report->records[1].outcome, Outcome::kCompleted);
}

TEST(Colocated, TheTimeOfADecodeCountsThoseThatStillRun) {
  // One decode has ended after 0.01 s, request 1 decodes for 49 s. So it still will after the queue of 2 s that request
  // 3 meets: 1,000 tokens of it, 2,000 of request 2 and its own 1,000 would take 0.4 s.
  const Workload workload = workload_of(
      {{0, 100, 2}, {1, 1000, 1000}, {50, 2000, 1}, {50.1, 1000, 1}}, {{1}, {2}, {3}, {4}});
  const Result<ClusterReport> report =
      simulate_colocated(predictive_cluster(0.35), workload, kContextTimings);
  ASSERT_TRUE(report);
  EXPECT_EQ(report->records[2].outcome, Outcome::kCompleted);
  EXPECT_EQ(report->records[3].outcome, Outcome::kRejectedDecode);
}

TEST(Colocated, ARequestTakesItsChunksAndOneStepAToken) {
  // 500 tokens: chunks of 200, 200 and 100, 0.5 s; then two more tokens, 0.1 s each.
  const Workload workload = workload_of({{0, 500, 3}}, {{1, 2, 3, 4, 5}});
  const Result<ClusterReport> report = simulate_colocated(small_cluster(1), workload, kTimings);
  ASSERT_TRUE(report);
  EXPECT_DOUBLE_EQ(report->records[0].first_token_s, 0.5);
  EXPECT_DOUBLE_EQ(report->records[0].end_s, 0.7);
  EXPECT_DOUBLE_EQ(report->tbt_s.mean, 0.1);
  EXPECT_EQ(report->instances[0].steps, 5u);
  EXPECT_EQ(report->instances[0].tokens, 2u);
  EXPECT_DOUBLE_EQ(report->instances[0].busy_s, 0.7);
  EXPECT_EQ(report->bytes_transferred, 0);
}

TEST(Colocated, APromptDelaysTheTokensOfAnotherRequest) {
  // Request 0 has its first token at 0.1 s. Request 1 is seen at 0.2 s: 199 of its tokens beside a decode, 0.299 s.
  const Workload workload = workload_of({{0, 100, 3}, {0.15, 300, 1}}, {{1}, {7, 8, 9}});
  const Result<ClusterReport> report = simulate_colocated(small_cluster(1), workload, kTimings);
  ASSERT_TRUE(report);
  EXPECT_DOUBLE_EQ(report->records[0].first_token_s, 0.1);
  EXPECT_DOUBLE_EQ(report->records[0].end_s, 0.2 + 0.299);
  EXPECT_DOUBLE_EQ(report->records[1].first_token_s, 0.2 + 0.299 + 0.101);
}

TEST(Colocated, LeastLoadedSpreadsRequestsAndPrefixFollowsTheCache) {
  const Workload workload =
      workload_of({{0, 300, 1}, {0.1, 300, 1}, {5, 400, 1}}, {{1, 2, 3}, {5, 6, 7}, {5, 6, 7, 8}});
  ColocatedOptions options = small_cluster(2);
  Result<ClusterReport> report = simulate_colocated(options, workload, kTimings);
  ASSERT_TRUE(report);
  EXPECT_EQ(report->records[0].prefill, 0u);
  EXPECT_EQ(report->records[1].prefill, 1u);
  EXPECT_EQ(report->records[2].prefill, 0u);
  EXPECT_EQ(report->records[2].hit_tokens, 0u);
  options.cluster.routing.kind = sched::RoutingKind::kPrefix;
  report = simulate_colocated(options, workload, kTimings);
  ASSERT_TRUE(report);
  EXPECT_EQ(report->records[2].prefill, report->records[1].prefill);
  EXPECT_EQ(report->records[2].hit_tokens, 300u);
}

TEST(Colocated, TheHostsCacheHasWhatTheEnginesBlocksHaveLost) {
  // 40 blocks of 10: the second prompt takes all that the first one has left.
  const Workload workload =
      workload_of({{0, 300, 1}, {5, 390, 1}, {9, 300, 1}}, {{1, 2, 3}, {5, 6, 7, 8}, {1, 2, 3}});
  ColocatedOptions options = small_cluster(1);
  options.engine.blocks = 40;
  Result<ClusterReport> report = simulate_colocated(options, workload, kTimings);
  ASSERT_TRUE(report);
  const std::uint64_t without = report->records[2].hit_tokens;
  options.cluster.node_capacity_blocks = 10;
  report = simulate_colocated(options, workload, kTimings);
  ASSERT_TRUE(report);
  EXPECT_LT(without, 100u);
  EXPECT_EQ(report->records[2].hit_tokens, 299u);  // all but the last token
  EXPECT_EQ(report->instances[0].most_cached_blocks, 7u);
}

TEST(Colocated, AnInstanceReadsThePoolOverItsLink) {
  // Request 0 writes 300 bytes to the pool. Request 1 comes at 5 s to the other instance: 300 bytes at 10,000 bytes/s
  // take 0.03 s, then one token, 1 ms.
  const Workload workload = workload_of({{0, 300, 1}, {5, 300, 1}}, {{1, 2, 3}, {1, 2, 3}});
  ColocatedOptions options = small_cluster(2);
  options.cluster.routing.kind = sched::RoutingKind::kRoundRobin;
  options.cluster.pool_capacity_blocks = 100;
  options.cluster.pool_link.bytes_per_s = 10'000;
  options.engine.prefix_caching = false;
  const Result<ClusterReport> report = simulate_colocated(options, workload, kTimings);
  ASSERT_TRUE(report);
  EXPECT_NE(report->records[0].prefill, report->records[1].prefill);
  EXPECT_DOUBLE_EQ(report->records[1].first_token_s, 5 + 0.03 + 0.001);
  EXPECT_DOUBLE_EQ(report->pool_read_bytes, 300);
  EXPECT_DOUBLE_EQ(report->bytes_transferred, 600 + 1);
}

TEST(Colocated, RequestsOfAnInstanceThatFailsBeginAgainElsewhere) {
  ColocatedOptions options = small_cluster(2);
  options.cluster.changes = {{.at_s = 0.3, .change = Change::kFail, .instance = 0}};
  const Workload workload = workload_of({{0, 500, 2}}, {{1, 2, 3, 4, 5}});
  const Result<ClusterReport> report = simulate_colocated(options, workload, kTimings);
  ASSERT_TRUE(report);
  EXPECT_EQ(report->completed, 1u);
  EXPECT_EQ(report->records[0].restarts, 1u);
  EXPECT_EQ(report->records[0].prefill, 1u);
  EXPECT_DOUBLE_EQ(report->records[0].first_token_s, 0.8);
}

TEST(Colocated, WhatCannotBeIsRefused) {
  const Workload workload = workload_of({{0, 100, 1}, {0, 3000, 1}}, {{1}, {2}});
  const auto is_refused = [&](auto change) {
    ColocatedOptions options = small_cluster(1);
    change(options);
    const Result<ClusterReport> report = simulate_colocated(options, workload, kTimings);
    return !report && report.error().code == Code::kInvalidArgument;
  };
  EXPECT_FALSE(is_refused([](ColocatedOptions&) {}));
  EXPECT_TRUE(is_refused([](ColocatedOptions& o) { o.cluster.decode = 1; }));
  EXPECT_TRUE(is_refused([](ColocatedOptions& o) { o.engine.blocks = 0; }));
  EXPECT_TRUE(is_refused([](ColocatedOptions& o) { o.engine.block_tokens = 30; }));
  const Result<ClusterReport> report = simulate_colocated(small_cluster(1), workload, kTimings);
  ASSERT_TRUE(report);
  EXPECT_EQ(report->records[1].outcome, Outcome::kNoInstance);
}

// Sizes small enough that queues, preemptions, full caches and failures all happen.
TEST(Colocated, AHostsPromptTakesWhatAPeerHasThroughItsHostsMemory) {
  // 200 tokens on the first host, in 0.2 s. The other one: a question, 200 bytes at 1000 bytes/s, then 100 tokens.
  ColocatedOptions options = small_cluster(2);
  options.cluster.link.latency_s = 0.01;
  options.cluster.node_capacity_blocks = 10;
  options.cluster.routing.kind = sched::RoutingKind::kRoundRobin;
  options.cluster.peers.is_on = true;
  const Workload workload = workload_of({{0, 200, 1}, {10, 300, 1}}, {{1, 2}, {1, 2, 3}});
  const Result<ClusterReport> report = simulate_colocated(options, workload, kTimings);
  ASSERT_TRUE(report);
  EXPECT_NEAR(report->records[1].first_token_s, 10 + 0.01 + 0.2 + 0.01 + 0.1, 1e-9);
  EXPECT_EQ(report->records[1].peer_tokens, 200u);
  EXPECT_EQ(report->instances[1].cached_blocks, 3u);
}

struct Drawn {
  ColocatedOptions options;
  Workload workload{100};
};

void draw(Drawn& drawn) {
  const auto below = draw_below;
  ClusterOptions& o = drawn.options.cluster;
  draw_options(o, 0.1, 10);
  o.closed_loop = below(3) == 0 ? 1 + below(8) : 0;
  const std::uint64_t passes = 1 + below(3);
  constexpr std::uint64_t kBlockTokens[] = {1, 10, 50, 100};
  EngineOptions& e = drawn.options.engine;
  e.block_tokens = kBlockTokens[below(4)];
  e.blocks = (300 + below(2500)) / e.block_tokens;
  e.max_sequences = 1 + below(8);
  e.step_tokens = 20 + below(400);
  e.prefix_caching = below(4) != 0;
  e.async_scheduling = below(2) == 0;
  e.layerwise = {.kind = static_cast<sched::LayerwiseKind>(below(4)),
                 .layers = 1 + below(12),
                 .staging_layers = below(4),
                 .host_bytes_per_s = static_cast<double>(10 + below(3000)),
                 .tbt_slo_s = o.admission.tbt_slo_s};
  e.kv_bytes_per_block = static_cast<double>(e.block_tokens);
  e.host_blocks = below(2) == 0 ? below(40) : ~std::uint64_t{0};
  draw_requests(drawn.workload, 60, 100, 100.1);
  if (passes > 1) o.pass_requests = drawn.workload.jobs().size();
  drawn.workload.repeat(passes);
}

RC_GTEST_PROP(Colocated, EveryRequestEndsOnceNothingIsOverCapacityAndBytesAddUp, ()) {
  Drawn drawn;
  draw(drawn);
  const ClusterOptions& o = drawn.options.cluster;
  const Result<ClusterReport> report = simulate_colocated(drawn.options, drawn.workload, kTimings);
  RC_ASSERT(report.ok());
  check_requests(*report, drawn.workload, [](const RequestRecord& record) {
    RC_ASSERT(record.first_token_s > record.arrival_s);
  });
  double sent = 0, received = 0;
  for (const InstanceReport& instance : report->instances) {
    sent += instance.sent_bytes;
    received += instance.received_bytes;
    RC_ASSERT(instance.most_reserved_tokens <= drawn.options.engine.capacity_tokens());
    RC_ASSERT(instance.most_cached_blocks <= o.node_capacity_blocks);
  }
  RC_ASSERT(report->pool_blocks <= o.pool_capacity_blocks);
  const double kinds = report->peer_bytes + report->pool_read_bytes + report->pool_write_bytes;
  // A failure cuts transfers: of these counts what they had sent.
  RC_ASSERT(std::abs(report->bytes_transferred - kinds) < 1);
  if (o.pool_capacity_blocks == 0) RC_ASSERT(std::abs(sent - received) < 1);
}

RC_GTEST_PROP(Colocated, EqualInputsHaveEqualReports, ()) {
  Drawn drawn;
  draw(drawn);
  const Result<ClusterReport> a = simulate_colocated(drawn.options, drawn.workload, kTimings);
  const Result<ClusterReport> b = simulate_colocated(drawn.options, drawn.workload, kTimings);
  RC_ASSERT(a.ok() && b.ok());
  check_equal(*a, *b);
}

}  // namespace
}  // namespace cachalot::sim
