#include "sim/cluster/cluster.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <cmath>
#include <vector>

#include "sched/policy/test_timing.h"
#include "sim/cluster/cluster_test_loads.h"

namespace cachalot::sim {
namespace {

const sched::TestTiming
    kTiming;  // prefill: 1 ms a token; a decode step: 1 s a sequence, 1 ms a token

ClusterOptions small_cluster() {
  ClusterOptions options;
  options.prefill = 1;
  options.node_capacity_blocks = 100;
  options.kv_bytes_per_token = 1;
  options.link = {.latency_s = 0, .bytes_per_s = 1000};
  options.pool_link = options.link;
  return options;
}

TEST(Cluster, AQueuedRequestStartsWithWhatTheOneBeforeItComputed) {
  // 200 tokens, 0.2 s; then 300 of which the first 200 are there: 0.1 s more, at 0.3 s.
  const Workload workload = workload_of({{0, 200, 1}, {0.1, 300, 1}}, {{1, 2}, {1, 2, 3}});
  const Result<ClusterReport> report = simulate(small_cluster(), workload, {&kTiming, &kTiming});
  ASSERT_TRUE(report);
  EXPECT_DOUBLE_EQ(report->records[0].first_token_s, 0.2);
  EXPECT_DOUBLE_EQ(report->records[1].first_token_s, 0.3);
  EXPECT_EQ(report->records[1].hit_tokens, 200u);
  EXPECT_DOUBLE_EQ(report->records[1].predicted_ttft_s, 0.2);
  EXPECT_DOUBLE_EQ(report->full_block_hit_rate(), 2.0 / 5);
  EXPECT_EQ(report->completed, 2u);
}

TEST(Cluster, TheKvGoesOverTheLinksToADecodeInstanceThatAddsATokenAStep) {
  // Prefill 0.5 s; 500 bytes at 1000 bytes/s: 0.5 s; steps of 1 s + 501 ms and 1 s + 502 ms.
  ClusterOptions options = small_cluster();
  options.decode = 1;
  const Workload workload = workload_of({{0, 500, 3}}, {{1, 2, 3, 4, 5}});
  const Result<ClusterReport> report = simulate(options, workload, {&kTiming, &kTiming});
  ASSERT_TRUE(report);
  EXPECT_DOUBLE_EQ(report->records[0].first_token_s, 0.5);
  EXPECT_DOUBLE_EQ(report->records[0].end_s, 1 + 1.501 + 1.502);
  EXPECT_DOUBLE_EQ(report->handover_bytes, 500);
  EXPECT_DOUBLE_EQ(report->bytes_transferred, 500);
  EXPECT_EQ(report->instances[1].most_reserved_tokens, 503u);
}

TEST(Cluster, AnInstanceThatHasLeftDoesNotShortenTheQueueThatAdmissionExpects) {
  // Request 2 meets a queue of 2 s. By then 0.135 of request 0 is left: a step of 2 s for two sequences and 4.8 s for
  // 406 + 2,000 + 2,400 tokens. After 1 s, the mean with the instance that has left, it would be 7.5 s.
  ClusterOptions options = small_cluster();
  options.prefill = 2;
  options.decode = 1;
  options.admission.kind = sched::AdmissionKind::kPredictive;
  options.admission.tbt_slo_s = 7.2;
  options.assumed_decode_s = 1;
  options.changes = {{.at_s = 0, .change = Change::kLeave, .instance = 1}};
  const Workload workload =
      workload_of({{0, 3000, 1000}, {4, 2000, 1}, {4, 2400, 1}}, {{1}, {2}, {3}});
  const Result<ClusterReport> report = simulate(options, workload, {&kTiming, &kTiming});
  ASSERT_TRUE(report);
  EXPECT_EQ(report->records[1].outcome, Outcome::kCompleted);
  EXPECT_EQ(report->records[2].outcome, Outcome::kCompleted);
}

TEST(Cluster, WithoutCachesAnInstanceReadsFromThePoolAlsoWhatItComputesNow) {
  // The pool has 1 and 2. Request 2 waits while the instance computes 1 for request 1, and will not have it then.
  ClusterOptions options = small_cluster();
  options.node_capacity_blocks = 0;
  options.pool_capacity_blocks = 100;
  options.pool_link.bytes_per_s = 1e6;
  const Workload workload =
      workload_of({{0, 200, 1}, {10, 150, 1}, {10, 200, 1}}, {{1, 2}, {1, 3}, {1, 2}});
  const Result<ClusterReport> report = simulate(options, workload, {&kTiming, &kTiming});
  ASSERT_TRUE(report);
  EXPECT_EQ(report->records[2].hit_tokens, 200u);
  EXPECT_EQ(report->records[2].transferred_tokens, 200u);
  EXPECT_EQ(report->hit_tokens_pool, report->hit_tokens);
}

TEST(Cluster, APromptThatThePoolHasWholeIsAUseOfItsBlocks) {
  // A pool of three blocks gets 1, 2, then 3; 1 is read, its second use, before 4 comes. So 2 is evicted, and 1 is there
  // at the end.
  ClusterOptions options = small_cluster();
  options.node_capacity_blocks = 0;
  options.pool_capacity_blocks = 3;
  options.pool_link.bytes_per_s = 1e6;
  options.eviction = eviction::PolicyKind::kLfu;
  const Workload workload =
      workload_of({{0, 100, 1}, {1, 100, 1}, {2, 100, 1}, {3, 100, 1}, {4, 100, 1}, {5, 100, 1}},
                  {{1}, {2}, {3}, {1}, {4}, {1}});
  const Result<ClusterReport> report = simulate(options, workload, {&kTiming, &kTiming});
  ASSERT_TRUE(report);
  EXPECT_EQ(report->records[3].pool_tokens, 100u);
  EXPECT_EQ(report->records[5].pool_tokens, 100u);
}

TEST(Cluster, AHitInThePoolIsAUseOfTheStoragesCopy) {
  // The pool has room for two blocks, the storage for three: 1, 2; 1 is read; then 3 and 4. The pool has lost both, the
  // storage 2 alone.
  ClusterOptions options = small_cluster();
  options.node_capacity_blocks = 0;
  options.pool_capacity_blocks = 2;
  options.storage_capacity_blocks = 3;
  options.pool_link.bytes_per_s = options.storage_link.bytes_per_s = 1e6;
  const Workload workload =
      workload_of({{0, 100, 1}, {1, 100, 1}, {2, 100, 1}, {3, 100, 1}, {4, 100, 1}, {5, 100, 1}},
                  {{1}, {2}, {1}, {3}, {4}, {1}});
  const Result<ClusterReport> report = simulate(options, workload, {&kTiming, &kTiming});
  ASSERT_TRUE(report);
  EXPECT_EQ(report->records[2].pool_tokens, 100u);
  EXPECT_EQ(report->records[5].storage_tokens, 100u);
}

TEST(Cluster, AClosedLoopSendsARequestWhenOneEndsAndAPassWhenAllHaveEnded) {
  // One instance, two in flight: 0.2 s each, one after the other; the third comes at 0.2 s and ends at 0.6 s.
  // Then all again: the prefix is held but for the last token, so the first of the pass has a short wait.
  ClusterOptions options = small_cluster();
  options.closed_loop = 2;
  options.pass_requests = 3;
  Workload workload =
      workload_of({{0, 200, 1}, {50, 200, 1}, {90, 200, 1}}, {{1, 2}, {3, 4}, {5, 6}});
  workload.repeat(2);
  const Result<ClusterReport> report = simulate(options, workload, {&kTiming, &kTiming});
  ASSERT_TRUE(report);
  EXPECT_EQ(report->completed, 6u);
  EXPECT_DOUBLE_EQ(report->records[1].arrival_s, 0);
  EXPECT_DOUBLE_EQ(report->records[2].arrival_s, 0.2);
  EXPECT_DOUBLE_EQ(report->records[3].arrival_s, report->records[2].end_s);
  ASSERT_EQ(report->passes.size(), 2u);
  EXPECT_EQ(report->passes[0].hit_tokens, 0u);
  EXPECT_EQ(report->passes[1].completed, 3u);
  EXPECT_GT(report->passes[1].hit_tokens, 500u);
  EXPECT_DOUBLE_EQ(report->passes[0].ttft_s.mean, (0.2 + 0.4 + 0.4) / 3);
}

TEST(Cluster, APassAtTheTracesTimesBeginsWhenAllHaveEnded) {
  // 0.3 s each, 0.5 s apart: the first pass ends at 0.8 s. The second pass is the same from there on, but for what is
  // held: all but the last token, 1 ms each.
  ClusterOptions options = small_cluster();
  options.pass_requests = 2;
  Workload workload = workload_of({{0, 300, 1}, {0.5, 300, 1}}, {{1, 2, 3}, {4, 5, 6}});
  workload.repeat(2);
  const Result<ClusterReport> report = simulate(options, workload, {&kTiming, &kTiming});
  ASSERT_TRUE(report);
  EXPECT_DOUBLE_EQ(report->records[1].first_token_s, 0.8);
  EXPECT_DOUBLE_EQ(report->records[2].arrival_s, 0.8);
  EXPECT_DOUBLE_EQ(report->records[2].first_token_s, 0.801);
  EXPECT_DOUBLE_EQ(report->records[3].arrival_s, 1.3);
  ASSERT_EQ(report->passes.size(), 2u);
  EXPECT_EQ(report->passes[1].completed, 2u);
}

// Times that no binary fraction has, and several requests at once, as in traces.
RC_GTEST_PROP(Cluster, ArrivalsOfAPassAreTheTracesAndNeverGoBack, ()) {
  const auto below = [](std::uint64_t bound) { return *rc::gen::inRange<std::uint64_t>(0, bound); };
  Workload workload(100);
  const std::uint64_t requests = 1 + below(40);
  for (std::uint64_t i = 0; i < requests; ++i) {
    RC_ASSERT(workload
                  .add(std::vector<std::uint64_t>{i}, 1 + below(100), 1,
                       static_cast<double>(below(20)) * 3000.1)
                  .ok());
  }
  RC_ASSERT(workload.finish(1).ok());
  const std::vector<Job> once(workload.jobs().begin(), workload.jobs().end());
  workload.repeat(1 + below(4));
  ClusterOptions options = small_cluster();
  options.pass_requests = once.size();
  const Result<ClusterReport> report = simulate(options, workload, {&kTiming, &kTiming});
  RC_ASSERT(report.ok());
  double last_s = 0;
  for (std::size_t i = 0; i < report->records.size(); ++i) {
    const double arrival_s = report->records[i].arrival_s;
    const std::size_t first = i - i % once.size();
    RC_ASSERT(arrival_s >= last_s);
    last_s = arrival_s;
    RC_ASSERT(std::abs(arrival_s - report->records[first].arrival_s -
                       once[i % once.size()].arrival_s) < 1e-6);
  }
}

TEST(Cluster, ARequestThatNoDecodeInstanceCanHoldIsRejectedAndNotForgotten) {
  ClusterOptions options = small_cluster();
  options.decode = 1;
  options.decode_capacity_tokens = 502;
  const Workload workload = workload_of({{0, 500, 3}}, {{1, 2, 3, 4, 5}});
  const Result<ClusterReport> report = simulate(options, workload, {&kTiming, &kTiming});
  ASSERT_TRUE(report);
  EXPECT_EQ(report->wasted, 1u);
  EXPECT_DOUBLE_EQ(report->wasted_prefill_s, 0.5);
}

TEST(Cluster, RequestsOfAnInstanceThatFailsBeginAgainElsewhere) {
  ClusterOptions options = small_cluster();
  options.prefill = 2;
  options.routing.kind = sched::RoutingKind::kRoundRobin;
  options.changes = {{.at_s = 0.3, .change = Change::kFail, .instance = 0}};
  const Workload workload = workload_of({{0, 500, 1}, {0.1, 100, 1}}, {{1, 2, 3, 4, 5}, {9}});
  const Result<ClusterReport> report = simulate(options, workload, {&kTiming, &kTiming});
  ASSERT_TRUE(report);
  EXPECT_EQ(report->completed, 2u);
  EXPECT_EQ(report->records[0].restarts, 1u);
  EXPECT_EQ(report->records[0].prefill, 1u);
  EXPECT_DOUBLE_EQ(report->records[0].first_token_s, 0.8);  // 0.3 + 0.5
  EXPECT_DOUBLE_EQ(report->wasted_prefill_s, 0.3);
}

TEST(Cluster, AnInstanceThatLeavesTakesNoMoreAndWithoutAnyRequestsAreRejected) {
  ClusterOptions options = small_cluster();
  options.changes = {{.at_s = 0.1, .change = Change::kLeave, .instance = 0},
                     {.at_s = 2, .change = Change::kJoin, .instance = 0}};
  const Workload workload = workload_of({{0, 500, 1}, {0.2, 100, 1}, {3, 500, 1}},
                                        {{1, 2, 3, 4, 5}, {9}, {1, 2, 3, 4, 5}});
  const Result<ClusterReport> report = simulate(options, workload, {&kTiming, &kTiming});
  ASSERT_TRUE(report);
  EXPECT_EQ(report->completed, 2u);
  EXPECT_EQ(report->records[1].outcome, Outcome::kNoInstance);
  EXPECT_EQ(report->records[2].hit_tokens, 0u);  // its cache went with it
}

TEST(Cluster, WhatThePoolHasEvictedComesBackFromTheStorage) {
  // A pool of two blocks at 10,000 bytes/s, and storage behind it at 5,000. The first two requests take 0.2 s each; the
  // second evicts the first. The third is the first with a block more, at 2 s: 200 bytes to the pool in 0.04 s, to the
  // instance in 0.02 s, then 100 tokens in 0.1 s.
  ClusterOptions options = small_cluster();
  options.node_capacity_blocks = 0;
  options.pool_capacity_blocks = 2;
  options.pool_link = {.latency_s = 0, .bytes_per_s = 10000};
  options.storage_capacity_blocks = 100;
  options.storage_link = {.latency_s = 0, .bytes_per_s = 5000};
  const Workload workload =
      workload_of({{0, 200, 1}, {1, 200, 1}, {2, 300, 1}}, {{1, 2}, {3, 4}, {1, 2, 5}});
  const Result<ClusterReport> report = simulate(options, workload, {&kTiming, &kTiming});
  ASSERT_TRUE(report);
  EXPECT_DOUBLE_EQ(report->records[2].first_token_s, 2 + 0.04 + 0.02 + 0.1);
  EXPECT_EQ(report->records[2].hit_tokens, 200u);
  EXPECT_EQ(report->records[2].storage_tokens, 200u);
  EXPECT_EQ(report->hit_tokens_storage, 200u);
  EXPECT_EQ(report->hit_tokens_pool, 0u);
  EXPECT_DOUBLE_EQ(report->storage_read_bytes, 200);
  EXPECT_DOUBLE_EQ(report->storage_write_bytes, 400);  // the third's would begin after its end
  EXPECT_EQ(report->storage_blocks, 4u);
  // Slow storage is left alone: 200 bytes would take 0.4 s, as many tokens 0.2 s.
  options.storage_link.bytes_per_s = 500;
  const Result<ClusterReport> slow = simulate(options, workload, {&kTiming, &kTiming});
  ASSERT_TRUE(slow);
  EXPECT_EQ(slow->records[2].hit_tokens, 0u);
  EXPECT_DOUBLE_EQ(slow->storage_read_bytes, 0);
}

// A link of 50 bytes/s has not sent the 500 bytes of all writes when the last request ends, after three seconds at most.
TEST(Cluster, WhatStorageHasNotGotByTheLastEndIsNotWritten) {
  ClusterOptions options = small_cluster();
  options.pool_capacity_blocks = 100;
  options.pool_link = {.latency_s = 0, .bytes_per_s = 10000};
  options.storage_capacity_blocks = 100;
  options.storage_link = {.latency_s = 0, .bytes_per_s = 50};
  const Workload workload =
      workload_of({{0, 200, 1}, {1, 200, 1}, {2, 100, 1}}, {{1, 2}, {3, 4}, {5}});
  const Result<ClusterReport> report = simulate(options, workload, {&kTiming, &kTiming});
  ASSERT_TRUE(report);
  EXPECT_EQ(report->completed, 3u);
  ASSERT_LT(report->sim_s, 3);
  EXPECT_GT(report->storage_write_bytes, 50);
  EXPECT_LE(report->storage_write_bytes, 50 * report->sim_s);
  EXPECT_EQ(report->storage_blocks, 0u);
  EXPECT_DOUBLE_EQ(report->bytes_transferred,
                   report->handover_bytes + report->peer_bytes + report->pool_read_bytes +
                       report->pool_write_bytes + report->storage_write_bytes);
}

TEST(Cluster, ImpossibleClustersAreOneErrorEach) {
  const Workload workload = workload_of({{0, 100, 1}}, {{1}});
  const auto is_refused = [&](auto change) {
    ClusterOptions options = small_cluster();
    options.decode = 1;
    change(options);
    const Result<ClusterReport> report = simulate(options, workload, {&kTiming, &kTiming});
    return !report && report.error().code == Code::kInvalidArgument;
  };
  EXPECT_TRUE(is_refused([](ClusterOptions& o) { o.prefill = 0; }));
  EXPECT_TRUE(is_refused([](ClusterOptions& o) { o.kv_bytes_per_token = -1; }));
  EXPECT_TRUE(is_refused([](ClusterOptions& o) { o.link.bytes_per_s = 0; }));
  EXPECT_TRUE(is_refused([](ClusterOptions& o) { o.link.latency_s = -1; }));
  EXPECT_TRUE(is_refused([](ClusterOptions& o) { o.decode_capacity_tokens = 0; }));
  EXPECT_TRUE(is_refused([](ClusterOptions& o) { o.eviction = eviction::PolicyKind::kArc; }));
  EXPECT_TRUE(is_refused([](ClusterOptions& o) { o.storage_capacity_blocks = 1; }));
  EXPECT_TRUE(is_refused([](ClusterOptions& o) { o.admission.tbt_slo_s = 0; }));
  EXPECT_TRUE(is_refused([](ClusterOptions& o) {
    o.changes = {{.at_s = 1, .change = Change::kFail, .instance = 1}};
  }));
}

// Sizes and times small enough that queues, full caches, full decode instances and failures all happen.
struct Drawn {
  ClusterOptions options;
  Workload workload{100};
};

void draw(Drawn& drawn) {
  ClusterOptions& o = drawn.options;
  draw_options(o, 1, 30);
  o.decode = static_cast<std::uint32_t>(draw_below(4));
  if (o.pool_capacity_blocks != 0)
    o.storage_capacity_blocks = draw_below(2) == 0 ? 0 : 1 + draw_below(90);
  o.storage_link = {.latency_s = 0.02, .bytes_per_s = static_cast<double>(50 + draw_below(5000))};
  o.pool_bytes_per_s = static_cast<double>(100 + draw_below(9000));
  o.decode_capacity_tokens = 500 + draw_below(4000);
  o.decode_most_sequences = 1 + draw_below(8);
  draw_requests(drawn.workload, 80, 30'000, 1);
}

RC_GTEST_PROP(Cluster, EveryRequestEndsOnceNothingIsOverCapacityAndBytesAddUp, ()) {
  Drawn drawn;
  draw(drawn);
  const ClusterOptions& o = drawn.options;
  const Result<ClusterReport> report = simulate(o, drawn.workload, {&kTiming, &kTiming});
  RC_ASSERT(report.ok());
  check_requests(*report, drawn.workload, [](const RequestRecord& record) {
    RC_ASSERT(record.first_token_s >= record.prefill_begin_s);
  });
  double sent = 0, received = 0;
  for (const InstanceReport& instance : report->instances) {
    sent += instance.sent_bytes;
    received += instance.received_bytes;
    if (instance.is_decode) {
      RC_ASSERT(instance.most_reserved_tokens <= o.decode_capacity_tokens);
    } else {
      RC_ASSERT(instance.most_cached_blocks <= o.node_capacity_blocks);
    }
  }
  RC_ASSERT(report->pool_blocks <= o.pool_capacity_blocks);
  RC_ASSERT(report->storage_blocks <= o.storage_capacity_blocks);
  const double storage = report->storage_read_bytes + report->storage_write_bytes;
  const double kinds = report->handover_bytes + report->peer_bytes + report->pool_read_bytes +
                       report->pool_write_bytes + storage;
  // A failure cuts transfers: of these counts what they had sent.
  RC_ASSERT(std::abs(report->bytes_transferred - kinds) < 1);
  // Each transfer has one end at an instance with the pool, and two without: one that sends, one that receives. Those
  // between pool and storage have none.
  if (o.pool_capacity_blocks == 0) RC_ASSERT(std::abs(sent - received) < 1);
  RC_ASSERT(sent + received >= report->bytes_transferred - storage - 1);
}

RC_GTEST_PROP(Cluster, EqualInputsHaveEqualReports, ()) {
  Drawn drawn;
  draw(drawn);
  const Result<ClusterReport> a = simulate(drawn.options, drawn.workload, {&kTiming, &kTiming});
  const Result<ClusterReport> b = simulate(drawn.options, drawn.workload, {&kTiming, &kTiming});
  RC_ASSERT(a.ok() && b.ok());
  check_equal(*a, *b);
}

}  // namespace
}  // namespace cachalot::sim
