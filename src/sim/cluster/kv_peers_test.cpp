// Hosts that are peers: what a prompt lacks comes from the cache of another instance.
#include <gtest/gtest.h>

#include <vector>

#include "sched/policy/test_timing.h"
#include "sim/cluster/cluster.h"

namespace cachalot::sim {
namespace {

const sched::TestTiming kTiming;  // prefill: 1 ms a token

// Blocks of 100 tokens, a byte a token. Request i comes to host i modulo `hosts`.
ClusterOptions hosts_that_are_peers(std::uint32_t hosts) {
  ClusterOptions options;
  options.prefill = hosts;
  options.node_capacity_blocks = 100;
  options.kv_bytes_per_token = 1;
  options.link = {.latency_s = 0.01, .bytes_per_s = 1000};
  options.routing.kind = sched::RoutingKind::kRoundRobin;
  options.peers.is_on = true;
  return options;
}

struct Prompt {
  double at_s;
  std::vector<std::uint64_t> blocks;
};

ClusterReport run(const ClusterOptions& options, const std::vector<Prompt>& prompts) {
  Workload workload(100);
  for (const Prompt& prompt : prompts) {
    EXPECT_TRUE(workload.add(prompt.blocks, prompt.blocks.size() * 100, 1, prompt.at_s * 1000));
  }
  EXPECT_TRUE(workload.finish(1));
  Result<ClusterReport> report = simulate(options, workload, {&kTiming, &kTiming});
  EXPECT_TRUE(report);
  return *std::move(report);
}

double ttft_s(const ClusterReport& report, std::size_t request) {
  return report.records[request].first_token_s - report.records[request].arrival_s;
}

TEST(KvPeers, APromptTakesItsHostsBlocksThenThoseOfAPeerThenComputes) {
  const ClusterReport report = run(
      hosts_that_are_peers(2),
      {{0, {1, 2}}, {10, {1, 2, 3}}, {20, {1, 2, 3, 4}}, {30, {1, 2, 3, 4}}, {40, {1, 2, 3, 4}}});
  EXPECT_NEAR(ttft_s(report, 0), 0.2, 1e-9);
  // The question, 200 bytes, 100 tokens.
  EXPECT_NEAR(ttft_s(report, 1), 0.01 + 0.2 + 0.01 + 0.1, 1e-9);
  EXPECT_NEAR(report.records[1].predicted_ttft_s, ttft_s(report, 1), 1e-9);
  EXPECT_EQ(report.records[1].peer_tokens, 200u);
  // Two of its own, one of the peer.
  EXPECT_NEAR(ttft_s(report, 2), 0.01 + 0.1 + 0.01 + 0.1, 1e-9);
  EXPECT_EQ(report.records[2].hit_tokens, 300u);
  EXPECT_EQ(report.records[2].peer_tokens, 100u);
  // All but the last token, which is computed.
  EXPECT_NEAR(ttft_s(report, 3), 0.01 + 0.1 + 0.01 + 0.001, 1e-9);
  EXPECT_NEAR(ttft_s(report, 4), 0.001, 1e-9);  // it has all itself

  EXPECT_EQ(report.blocks, 17u);
  EXPECT_EQ(report.hit_blocks, 13u);
  EXPECT_EQ(report.hit_blocks_peer, 4u);
  EXPECT_DOUBLE_EQ(report.block_hit_rate(), 13.0 / 17);
  EXPECT_DOUBLE_EQ(report.peer_bytes, 400);
  EXPECT_EQ(report.instances[0].cached_blocks, 4u);  // a copy lies in both
  EXPECT_EQ(report.instances[1].cached_blocks, 4u);
}

TEST(KvPeers, WithoutPeersAHostComputesWhatAnotherHas) {
  ClusterOptions options = hosts_that_are_peers(2);
  options.peers.is_on = false;
  const ClusterReport report = run(options, {{0, {1, 2}}, {10, {1, 2}}});
  EXPECT_NEAR(ttft_s(report, 1), 0.2, 1e-9);
  EXPECT_EQ(report.hit_blocks, 0u);
}

TEST(KvPeers, WhatAllHaveEvictedIsComputed) {
  ClusterOptions options = hosts_that_are_peers(2);
  options.node_capacity_blocks = 2;
  const ClusterReport report =
      run(options, {{0, {1, 2}}, {10, {5, 6}}, {20, {7, 8}}, {30, {1, 2}}});
  EXPECT_NEAR(ttft_s(report, 3), 0.2, 1e-9);
  EXPECT_EQ(report.hit_blocks, 0u);
  EXPECT_EQ(report.peer_gone_blocks, 0u);
}

// 7 and 8 take the place of 1 and 2 while the question for those is on its way, which takes 1 s.
TEST(KvPeers, WhatTheOwnerEvictsBeforeTheQuestionComesIsComputedAfterItsAnswer) {
  ClusterOptions options = hosts_that_are_peers(2);
  options.node_capacity_blocks = 2;
  options.link.latency_s = 1;
  const ClusterReport report =
      run(options, {{0, {1, 2}}, {1, {9}}, {10.3, {7, 8}}, {10.4, {1, 2}}});
  EXPECT_NEAR(ttft_s(report, 3), 1 + 1 + 0.2, 1e-9);
  EXPECT_EQ(report.records[3].hit_tokens, 0u);
  EXPECT_EQ(report.peer_gone_blocks, 2u);
}

TEST(KvPeers, TheNextOwnerIsAskedForWhatOneHasEvicted) {
  ClusterOptions options = hosts_that_are_peers(3);
  options.node_capacity_blocks = 2;
  options.link.latency_s = 1;
  const ClusterReport report =
      run(options,
          {{0, {1, 2}}, {10, {1, 2}}, {20, {9}}, {30.3, {7, 8}}, {30.35, {1, 2}}, {30.4, {1, 2}}});
  EXPECT_EQ(report.peer_gone_blocks, 2u);
  // A question and its answer, another question, 200 bytes, the last token.
  EXPECT_NEAR(ttft_s(report, 5), 1 + 1 + 1 + 0.2 + 1 + 0.001, 1e-9);
  EXPECT_EQ(report.records[5].peer_tokens, 200u);
}

TEST(KvPeers, AHostAsksAlsoWhereComputingWouldBeFaster) {
  ClusterOptions options = hosts_that_are_peers(2);
  options.link.bytes_per_s = 100;
  const ClusterReport report = run(options, {{0, {1, 2}}, {10, {1, 2}}});
  EXPECT_NEAR(ttft_s(report, 1), 0.01 + 2 + 0.01 + 0.001, 1e-9);
}

TEST(KvPeers, APromptThatWaitsTooLongTakesTheWholeBlocksThatHaveCome) {
  ClusterOptions options = hosts_that_are_peers(2);
  options.link.bytes_per_s = 100;
  options.peers.most_wait_s = 1.5;
  const ClusterReport report = run(options, {{0, {1, 2}}, {10, {1, 2}}, {20, {5}}, {30, {1, 2}}});
  EXPECT_NEAR(ttft_s(report, 1), 1.5 + 0.1, 1e-9);
  EXPECT_EQ(report.records[1].hit_tokens, 100u);
  EXPECT_EQ(report.records[1].peer_tokens, 100u);
  EXPECT_EQ(report.peer_waits_ended, 1u);
  EXPECT_NEAR(report.peer_bytes, 149, 1e-6);
  EXPECT_NEAR(ttft_s(report, 3), 0.001, 1e-9);  // it computed the second block
}

TEST(KvPeers, AWaitOfNothingIsNoPeers) {
  ClusterOptions options = hosts_that_are_peers(2);
  options.peers.most_wait_s = 0;
  const ClusterReport report = run(options, {{0, {1, 2}}, {10, {1, 2}}});
  EXPECT_NEAR(ttft_s(report, 1), 0.2, 1e-9);
  EXPECT_EQ(report.hit_blocks, 0u);
}

// Two hosts ask the third at the same time for 200 bytes each, at 100 bytes/s for both.
TEST(KvPeers, AnOwnerSendsNoMoreThanItsLimitToAllItsPeersTogether) {
  ClusterOptions options = hosts_that_are_peers(3);
  options.link.latency_s = 0;
  options.peers.bytes_per_s = 100;
  const ClusterReport report = run(options, {{0, {1, 2}}, {10, {1, 2}}, {10, {1, 2}}});
  EXPECT_NEAR(ttft_s(report, 1), 4 + 0.001, 1e-9);
  EXPECT_NEAR(ttft_s(report, 2), 4 + 0.001, 1e-9);
}

TEST(KvPeers, HostsOfOtherCellsAreNoPeers) {
  ClusterOptions options = hosts_that_are_peers(4);
  options.peers.cell = 2;
  const ClusterReport report =
      run(options, {{0, {1, 2}}, {10, {1, 2}}, {20, {1, 2}}, {30, {1, 2}}});
  EXPECT_EQ(report.records[1].peer_tokens, 200u);
  EXPECT_EQ(report.records[2].hit_tokens, 0u);
  EXPECT_EQ(report.records[3].peer_tokens, 200u);
}

TEST(KvPeers, WhatIsComputedWhileAPromptWaitsForItsTurnIsAskedForThen) {
  ClusterOptions options = hosts_that_are_peers(2);
  options.link.latency_s = 0;
  // The third comes to a busy host before the second, on the other one, is computed.
  const ClusterReport report = run(options, {{0, {7, 8, 9}}, {0, {1, 2}}, {0.1, {1, 2}}});
  EXPECT_EQ(report.records[2].peer_tokens, 200u);
  EXPECT_NEAR(report.records[2].first_token_s, 0.3 + 0.2 + 0.001, 1e-9);
}

TEST(KvPeers, APoolThatAllShareHasWhatNoPeerHas) {
  ClusterOptions options = hosts_that_are_peers(4);
  options.peers.cell = 2;
  options.pool_capacity_blocks = 100;
  options.pool_link = {.latency_s = 0, .bytes_per_s = 10000};
  // 1 to 3 are in the pool, 1 and 2 also at the peer.
  const ClusterReport report =
      run(options, {{0, {1, 2}}, {5, {4}}, {10, {1, 2, 3}}, {15, {6}}, {20, {8}}, {25, {1, 2, 3}}});
  EXPECT_EQ(report.records[5].peer_tokens, 200u);
  EXPECT_EQ(report.records[5].pool_tokens, 100u);
  EXPECT_EQ(report.hit_blocks_pool, 2u + 1u);
  EXPECT_EQ(report.hit_blocks_peer, 2u);
}

TEST(KvPeers, APromptWhoseOwnerFailsWhileItSendsAsksTheNextOrComputes) {
  ClusterOptions options = hosts_that_are_peers(2);
  options.changes = {{.at_s = 10.1, .change = Change::kFail, .instance = 0}};
  const ClusterReport report = run(options, {{0, {1, 2}}, {10, {1, 2}}});
  EXPECT_NEAR(ttft_s(report, 1), 0.1 + 0.2, 1e-9);
  EXPECT_EQ(report.records[1].hit_tokens, 0u);
  EXPECT_NEAR(report.peer_bytes, 90, 1e-6);
}

TEST(KvPeers, WrongOptionsAreErrors) {
  ClusterOptions options = hosts_that_are_peers(2);
  options.node_capacity_blocks = 0;
  EXPECT_FALSE(check(options));
  options = hosts_that_are_peers(2);
  options.peers.bytes_per_s = 0;
  EXPECT_FALSE(check(options));
  options.peers.bytes_per_s = 1;
  EXPECT_TRUE(check(options));
  options.peers.most_wait_s = -1;
  EXPECT_FALSE(check(options));
}

}  // namespace
}  // namespace cachalot::sim
