#include "sched/policy/routing.h"

#include <gtest/gtest.h>

#include <set>
#include <vector>

#include "sched/policy/test_timing.h"

namespace cachalot::sched {
namespace {

PrefillView view(double queue_s, std::uint64_t requests, std::uint64_t hit_tokens) {
  return {.queue_s = queue_s,
          .requests = requests,
          .hit_tokens = hit_tokens,
          .held_tokens = hit_tokens};
}

class Routing : public testing::Test {
 protected:
  Route route_by(RoutingKind kind, double threshold = 1) {
    return route({.kind = kind, .balancing_threshold = threshold}, request_,
                 {.prefill = views_,
                  .timing = &timing_,
                  .kv_bytes_per_token = 1,
                  .link = {.latency_s = 0, .bytes_per_s = bytes_per_s_},
                  .pool = {},
                  .turn = turn_,
                  .random = random_});
  }

  const TestTiming timing_{};
  RequestView request_{.input_tokens = 1000};
  // TTFT with its own cache: 0.9 + 0.2, 0.3 + 0.9, 0.5 + 1.0.
  std::vector<PrefillView> views_ = {view(0.9, 2, 800), view(0.3, 3, 100), view(0.5, 1, 0)};
  double bytes_per_s_ = 7000;
  std::uint64_t turn_ = 0, random_ = 0;
};

TEST_F(Routing, LocalTakesTheSmallestQueueAndPrefillWithItsOwnCache) {
  const Route chosen = route_by(RoutingKind::kLocal);
  EXPECT_EQ(chosen.instance, 0u);
  EXPECT_DOUBLE_EQ(chosen.ttft_s, 1.1);
  EXPECT_EQ(chosen.kv.transfer_tokens, 0u);
}

TEST_F(Routing, ConductorTransfersTheLongestPrefixToAnInstanceWithAShorterQueue) {
  // Instance 1: 0.3 + 700 / 7000 + 0.2 = 0.6; instance 2: 0.5 + 800 / 7000 + 0.2 = 0.814; instance 0: 1.1.
  const Route chosen = route_by(RoutingKind::kConductor);
  EXPECT_EQ(chosen.instance, 1u);
  EXPECT_EQ(chosen.kv.source, KvSource::kPeer);
  EXPECT_EQ(chosen.kv.peer, 0u);
  EXPECT_EQ(chosen.kv.transfer_tokens, 700u);
  EXPECT_EQ(chosen.kv.hit_tokens, 800u);
  EXPECT_DOUBLE_EQ(chosen.ttft_s, 0.6);
}

TEST_F(Routing, ConductorLeavesAPrefixThatIsNotMuchLonger) {
  // 800 / 100 = 8 is not above 10 for instance 1: 0.3 + 0.9 = 1.2. Instance 2 has none, which any exceeds: 0.814.
  const Route chosen = route_by(RoutingKind::kConductor, 10);
  EXPECT_EQ(chosen.instance, 2u);
  EXPECT_EQ(chosen.kv.transfer_tokens, 800u);
}

TEST_F(Routing, ConductorComputesWhereATransferTakesLonger) {
  // 700 bytes at 500 bytes/s take 1.4 s, and computing them 0.7 s: as local.
  bytes_per_s_ = 500;
  const Route chosen = route_by(RoutingKind::kConductor);
  EXPECT_EQ(chosen.instance, 0u);
  EXPECT_EQ(chosen.kv.source, KvSource::kOwn);
  EXPECT_DOUBLE_EQ(chosen.ttft_s, 1.1);
}

TEST_F(Routing, APeerSendsOnlyWhatItHasNow) {
  views_[0].held_tokens = 300;  // the other 500 are in its queue
  // Instance 1: 0.3 + 200 / 7000 + 0.7.
  const Route chosen = route_by(RoutingKind::kConductor);
  EXPECT_EQ(chosen.instance, 1u);
  EXPECT_EQ(chosen.kv.hit_tokens, 300u);
  EXPECT_DOUBLE_EQ(chosen.ttft_s, 0.3 + 200.0 / 7000 + 0.7);
}

TEST_F(Routing, LeastLoadedLooksAtSecondsAndPrefixAtTokens) {
  EXPECT_EQ(route_by(RoutingKind::kLeastLoaded).instance, 1u);
  EXPECT_EQ(route_by(RoutingKind::kPrefix).instance, 0u);
  views_[1].hit_tokens = 800;  // equal prefixes: the shorter queue
  EXPECT_EQ(route_by(RoutingKind::kPrefix).instance, 1u);
}

TEST_F(Routing, RoundRobinAndRandomSkipInstancesThatDoNotAccept) {
  views_[1].accepts = false;
  std::set<std::size_t> by_turn, by_chance;
  for (turn_ = random_ = 0; turn_ < 8; ++turn_, ++random_) {
    by_turn.insert(route_by(RoutingKind::kRoundRobin).instance);
    by_chance.insert(route_by(RoutingKind::kRandom).instance);
  }
  const std::set<std::size_t> both = {0, 2};
  EXPECT_EQ(by_turn, both);
  EXPECT_EQ(by_chance, both);
}

TEST_F(Routing, PowerOfTwoTakesTheShorterQueueOfTwoDifferentOnes) {
  // Low word: the first; high word: how far the second is behind it, from 1.
  random_ = 0;  // 0 and 1
  EXPECT_EQ(route_by(RoutingKind::kPowerOfTwo).instance, 1u);
  random_ = std::uint64_t{1} << 32;  // 0 and 2
  EXPECT_EQ(route_by(RoutingKind::kPowerOfTwo).instance, 2u);
}

TEST_F(Routing, CacheAwareFollowsALongMatchUnlessTheLoadIsUneven) {
  // 800 / 1000 > 0.5: the match.
  EXPECT_EQ(route_by(RoutingKind::kCacheAware).instance, 0u);
  // 400 / 1000 is short: the fewest requests.
  views_[0].hit_tokens = 400;
  EXPECT_EQ(route_by(RoutingKind::kCacheAware).instance, 2u);
  // 40 - 1 > 32 and 40 > 1.1 * 1: uneven, the fewest requests whatever matches.
  views_[0].hit_tokens = 800;
  views_[0].requests = 40;
  EXPECT_EQ(route_by(RoutingKind::kCacheAware).instance, 2u);
}

TEST_F(Routing, WithoutAnInstanceThatAcceptsThereIsNoRoute) {
  for (PrefillView& v : views_) v.accepts = false;
  for (const RoutingKind kind :
       {RoutingKind::kRandom, RoutingKind::kRoundRobin, RoutingKind::kLeastLoaded,
        RoutingKind::kPowerOfTwo, RoutingKind::kPrefix, RoutingKind::kLocal,
        RoutingKind::kConductor, RoutingKind::kCacheAware}) {
    EXPECT_FALSE(route_by(kind).exists()) << static_cast<int>(kind);
  }
}

TEST(RoutingNames, AreReadBackAndUnknownOnesAreNamed) {
  EXPECT_EQ(*parse_routing("cache_aware"), RoutingKind::kCacheAware);
  const Result<RoutingKind> unknown = parse_routing("best");
  ASSERT_FALSE(unknown);
  EXPECT_NE(std::string(unknown.error().message).find("\"best\""), std::string::npos);
}

}  // namespace
}  // namespace cachalot::sched
