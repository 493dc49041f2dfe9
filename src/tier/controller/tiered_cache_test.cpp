#include <cachalot/tier.h>
#include <gtest/gtest.h>

#include <thread>

#include "pool/pool.h"
#include "testing/client/tier_engine.h"

namespace cachalot::client {
namespace {

constexpr std::uint64_t kLongNs = 20'000'000'000;

// Blocks of 4 tokens. A token more than whole blocks: the last one is always computed.
Tokens prompt_of(std::uint64_t seed, std::size_t blocks) {
  return tokens_of(seed, blocks * 4 + 1);
}
Tokens join(Tokens front, const Tokens& back) {
  front.insert(front.end(), back.begin(), back.end());
  return front;
}

TieredCacheOptions local_options() {
  TieredCacheOptions options;
  options.shared.model = "test-model@1";
  options.shared.geometry = small_geometry();
  options.prefetch.threshold_tokens = 4;
  return options;
}
TieredCacheOptions pool_options(const Cluster& cluster) {
  TieredCacheOptions options = local_options();
  options.shared = cluster.client_options();
  options.prefetch.stop = PrefetchStop::kWaitComplete;
  return options;
}
TieredCacheOptions with_host(TieredCacheOptions options, double ratio) {
  options.host_ratio = ratio;
  return options;
}

// --- L1 and L2 --------------------------------------------------------------------------------------

TEST(TieredCache, APrefixIsFoundInDeviceMemoryAndTheRestIsComputed) {
  TierEngine engine(local_options(), 32);
  const Tokens prompt = prompt_of(1, 4);
  EXPECT_EQ(engine.serve(prompt).cached_tokens, 0u);
  const TierStart again = engine.serve(prompt);
  EXPECT_EQ(again.cached_tokens, 16u);
  EXPECT_EQ(again.device_tokens, 16u);
  EXPECT_EQ(
      engine.serve(join(Tokens(prompt.begin(), prompt.begin() + 8), prompt_of(2, 2))).cached_tokens,
      8u);
  // All tokens are cached blocks: the last block is computed again, for its logits.
  EXPECT_EQ(engine.serve(Tokens(prompt.begin(), prompt.begin() + 16)).cached_tokens, 12u);
  EXPECT_TRUE(engine.cache().is_valid());
}

class HostLayouts : public ::testing::TestWithParam<std::string> {};

TEST_P(HostLayouts, WhatDeviceMemoryEvictedIsLoadedBackFromHostMemory) {
  for (const std::uint32_t pages_per_block : {1u, 2u}) {
    TieredCacheOptions options = with_host(local_options(), 4);
    options.host_layout = GetParam();
    TierEngine engine(options, 8, pages_per_block);
    const Tokens prompt = prompt_of(1, 5);
    engine.serve(prompt);
    ASSERT_TRUE(engine.cache().flush(kLongNs));
    for (std::uint64_t other = 2; other < 5; ++other) engine.serve(prompt_of(other, 5));
    ASSERT_TRUE(engine.cache().flush(kLongNs));
    const TierStart again = engine.serve(prompt);  // checks the bytes
    EXPECT_EQ(again.cached_tokens, 20u);
    EXPECT_EQ(again.host_tokens, 20u);
    EXPECT_TRUE(engine.cache().flush(kLongNs));
    EXPECT_TRUE(engine.cache().is_valid());
  }
}
INSTANTIATE_TEST_SUITE_P(TieredCache, HostLayouts, ::testing::ValuesIn(host_layout_names()));

TEST(TieredCache, SelectiveCopiesWhatWasUsedTwice) {
  TieredCacheOptions options = with_host(local_options(), 4);
  options.writes = TierWrites::kSelective;
  TierEngine engine(options, 16);
  engine.serve(prompt_of(1, 5));
  ASSERT_TRUE(engine.cache().flush(kLongNs));
  EXPECT_EQ(engine.cache().statistics().backed_up_bytes, 0u);
  engine.serve(prompt_of(1, 5));
  ASSERT_TRUE(engine.cache().flush(kLongNs));
  EXPECT_EQ(engine.cache().statistics().backed_up_bytes, 5 * small_geometry().block_bytes());
  engine.serve(prompt_of(1, 5));  // a node is copied once
  ASSERT_TRUE(engine.cache().flush(kLongNs));
  EXPECT_EQ(engine.cache().statistics().backed_up_bytes, 5 * small_geometry().block_bytes());
}

TEST(TieredCache, BackCopiesWhatIsEvicted) {
  TieredCacheOptions options = with_host(local_options(), 4);
  options.writes = TierWrites::kBack;
  TierEngine engine(options, 8);
  engine.serve(prompt_of(1, 5));
  EXPECT_EQ(engine.cache().statistics().backed_up_bytes, 0u);
  engine.serve(prompt_of(2, 5));
  EXPECT_EQ(engine.cache().statistics().demoted_blocks, 5u);
  EXPECT_EQ(engine.serve(prompt_of(1, 5)).host_tokens, 20u);
}

// Neither tier has room for four prompts, but both together have. L2 needs room for one more while it exchanges
// blocks with L1.
TEST(TieredCache, ExclusiveTiersKeepEachBlockOnce) {
  TieredCacheOptions options = with_host(local_options(), 1.9);
  options.exclusive = true;
  TierEngine engine(options, 11);
  for (int round = 0; round < 3; ++round) {
    for (std::uint64_t prompt = 1; prompt <= 4; ++prompt) {
      const TierStart start = engine.serve(prompt_of(prompt, 5));
      EXPECT_EQ(start.cached_tokens, round == 0 ? 0u : 20u) << "prompt " << prompt;
      ASSERT_TRUE(engine.cache().flush(kLongNs));
      ASSERT_TRUE(engine.cache().is_valid());
    }
  }
  const TierStatistics s = engine.cache().statistics();
  EXPECT_EQ(s.device_blocks - s.free_device_blocks + s.host_blocks - s.free_host_blocks, 20u);
}

TEST(TieredCache, DecodedBlocksAreSharedToo) {
  TierEngine engine(with_host(local_options(), 2), 32);
  const Tokens prompt = prompt_of(1, 2), all = join(prompt, prompt_of(2, 2));
  const Result<RequestId> request = engine.cache().open(prompt);
  const Result<TierStart> start = engine.cache().start(*request);
  ASSERT_TRUE(start);
  engine.finish(*request, prompt, *start);
  const Result<std::vector<PageId>> pages = engine.cache().grow(*request, all.size());
  ASSERT_TRUE(pages);
  EXPECT_EQ(pages->size(), 5u);
  engine.compute(all, *pages, 8);
  ASSERT_TRUE(engine.cache().commit(*request, all));
  ASSERT_TRUE(engine.cache().close(*request));
  EXPECT_EQ(engine.serve(all).cached_tokens, 16u);
}

TEST(TieredCache, PagesOfOpenRequestsAreNeverTaken) {
  TierEngine engine(local_options(), 8);
  const Tokens first = prompt_of(1, 5);
  const Result<RequestId> one = engine.cache().open(first);
  const Result<TierStart> start = engine.cache().start(*one);
  ASSERT_TRUE(start);
  engine.finish(*one, first, *start);
  const Result<RequestId> two = engine.cache().open(prompt_of(2, 5));
  const Result<TierStart> refused = engine.cache().start(*two);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, Code::kNoSpace);
  EXPECT_TRUE(engine.holds(first, start->pages, 20, 0));
  EXPECT_FALSE(engine.cache().grow(*one, 9 * 4));
  ASSERT_TRUE(engine.cache().close(*one));
  ASSERT_TRUE(engine.cache().start(*two));  // the same request, once more
  ASSERT_TRUE(engine.cache().close(*two));
  EXPECT_TRUE(engine.cache().is_valid());
}

// Two requests compute the same prompt: one's blocks stay its own, and are free after close().
TEST(TieredCache, BlocksThatWereComputedTwiceAreKeptOnce) {
  TierEngine engine(local_options(), 16);
  const Tokens prompt = prompt_of(1, 5);
  const Result<RequestId> one = engine.cache().open(prompt), two = engine.cache().open(prompt);
  const Result<TierStart> start_one = engine.cache().start(*one),
                          start_two = engine.cache().start(*two);
  ASSERT_TRUE(start_one && start_two);
  EXPECT_EQ(start_two->cached_tokens, 0u);
  engine.finish(*one, prompt, *start_one);
  engine.finish(*two, prompt, *start_two);
  EXPECT_TRUE(engine.holds(prompt, start_two->pages, 20, 0));
  ASSERT_TRUE(engine.cache().close(*two));
  ASSERT_TRUE(engine.cache().close(*one));
  EXPECT_EQ(engine.cache().statistics().free_device_blocks, 11u);
  EXPECT_TRUE(engine.cache().is_valid());
}

TEST(TieredCache, ExtraKeysSeparateEqualTokens) {
  TierEngine engine(local_options(), 32);
  const Tokens prompt = prompt_of(1, 4);
  engine.serve(prompt, {.extra = "adapter one"});
  EXPECT_EQ(engine.serve(prompt).cached_tokens, 0u);
  EXPECT_EQ(engine.serve(prompt, {.extra = "adapter two"}).cached_tokens, 0u);
  EXPECT_EQ(engine.serve(prompt, {.extra = "adapter one"}).cached_tokens, 16u);
}

TEST(TieredCache, ARequestMayEndAtAnyMoment) {
  TierEngine engine(with_host(local_options(), 4), 16);
  const Tokens prompt = prompt_of(1, 6);
  engine.serve(prompt);
  ASSERT_TRUE(engine.cache().flush(kLongNs));
  for (int i = 0; i < 20; ++i) {
    engine.serve(prompt_of(100 + static_cast<std::uint64_t>(i), 10));
    const Result<RequestId> opened = engine.cache().open(prompt);
    ASSERT_TRUE(engine.cache().close(*opened));
    const Result<RequestId> started = engine.cache().open(prompt);
    ASSERT_TRUE(engine.cache().start(*started));  // a load may be in flight at close()
    ASSERT_TRUE(engine.cache().close(*started));
    EXPECT_FALSE(engine.cache().close(*started));
  }
  ASSERT_TRUE(engine.cache().flush(kLongNs));
  EXPECT_TRUE(engine.cache().is_valid());
  ASSERT_TRUE(engine.cache().clear());
  const TierStatistics s = engine.cache().statistics();
  EXPECT_EQ(s.free_device_blocks, s.device_blocks);
  EXPECT_EQ(s.free_host_blocks, s.host_blocks);
}

TEST(TieredCache, BlocksThatAreFasterToComputeAreNotLoaded) {
  TieredCacheOptions options = with_host(local_options(), 4);
  options.prefill = PrefillModel{.a_ns = 0, .b_ns = 1e9, .c_ns = 0};
  TierEngine slow(options, 8);
  options.prefill = PrefillModel{.a_ns = 0, .b_ns = 1e-6, .c_ns = 0};
  TierEngine fast(options, 8);
  for (TierEngine* engine : {&slow, &fast}) {
    for (int round = 0; round < 2; ++round) {
      for (std::uint64_t prompt = 1; prompt <= 3; ++prompt) {
        engine->serve(prompt_of(prompt, 5));
        ASSERT_TRUE(engine->cache().flush(kLongNs));
      }
    }
  }
  EXPECT_EQ(slow.cache().statistics().recomputed_tokens, 0u);
  // The first load measures the bandwidth.
  EXPECT_EQ(fast.cache().statistics().recomputed_tokens, 40u);
}

// --- L3 ---------------------------------------------------------------------------------------------

class WithPool : public ::testing::TestWithParam<double> {
 protected:
  WithPool() : cluster_(small_geometry().block_bytes(), 256, "noncoherent") {}
  TieredCacheOptions options() const { return with_host(pool_options(cluster_), GetParam()); }
  Cluster cluster_;
};

TEST_P(WithPool, AnotherEngineFindsWhatOneHasComputed) {
  TierEngine one(options(), 64), other(options(), 64);
  const Tokens prompt = prompt_of(1, 40);
  EXPECT_EQ(one.serve(prompt).cached_tokens, 0u);
  ASSERT_TRUE(one.cache().flush(kLongNs));
  EXPECT_EQ(one.cache().statistics().unwritten_blocks, 0u);
  const TierStart start = other.serve(prompt);  // checks the bytes
  EXPECT_EQ(start.cached_tokens, 160u);
  EXPECT_EQ(start.shared_tokens, 160u);
  EXPECT_EQ(other.serve(prompt).device_tokens, 160u);
  // A second turn: only what is new is written, and the pool has it after what it had.
  const Tokens longer = join(prompt, prompt_of(2, 3));
  other.serve(longer);
  ASSERT_TRUE(other.cache().flush(kLongNs));
  EXPECT_EQ(other.cache().statistics().written_bytes, 3 * small_geometry().block_bytes());
  EXPECT_EQ(one.serve(longer).cached_tokens, 172u);
  EXPECT_TRUE(one.cache().is_valid() && other.cache().is_valid());
}

// An engine asks the pool for the blocks that it does not have itself.
TEST_P(WithPool, EachPromptCountsOnceInThePoolsHitRate) {
  const Result<pool::Pool> pool = pool::Pool::open({cluster_.path()}, {.read_only = true});
  ASSERT_TRUE(pool) << pool.error().message;
  const Tokens prompt = prompt_of(1, 40), longer = join(prompt, prompt_of(2, 40));
  {
    TierEngine one(options(), 128), other(options(), 128);
    one.serve(prompt);  // asks for 40, finds none
    ASSERT_TRUE(one.cache().flush(kLongNs));
    EXPECT_EQ(other.serve(prompt).shared_tokens, 160u);  // for 40, uses all
    EXPECT_EQ(other.serve(prompt).shared_tokens, 0u);    // has them
    EXPECT_EQ(one.serve(longer).shared_tokens, 0u);      // for the other 40, finds none
  }
  using pool::ClientCounter;
  const pool::ClientCounters totals = pool->state().read_totals();
  EXPECT_EQ(totals[ClientCounter::kPrompts], 3u);
  EXPECT_EQ(totals[ClientCounter::kPromptBlocks], 120u);
  EXPECT_EQ(totals[ClientCounter::kUsedPoolBlocks], 40u);
  EXPECT_EQ(totals[ClientCounter::kUsedStorageBlocks], 0u);
}

TEST_P(WithPool, WithShareTpRanksOfAnotherEngineFindTheirHeads) {
  TieredCacheOptions with = options();
  with.shared.share_tp = 2;
  TierEngine one(with, 64), other(with, 64);
  const Tokens prompt = prompt_of(1, 8);
  one.serve(prompt);
  ASSERT_TRUE(one.cache().flush(kLongNs));
  EXPECT_EQ(one.cache().statistics().written_bytes, 8 * small_geometry().block_bytes());
  EXPECT_EQ(other.serve(prompt).shared_tokens, 32u);  // checks the bytes
  ClientOptions half = with.shared;
  half.geometry.kv_heads = 1;
  half.geometry.tp_size = 2;
  for (const std::uint32_t rank : {0u, 1u}) {
    half.geometry.tp_rank = rank;
    Engine reader(half);
    const auto hashes = reader.client.hash_tokens(prompt);
    EXPECT_EQ(
        *reader.client.load(reader.cache, hashes, std::vector<PageId>{0, 1, 2, 3, 4, 5, 6, 7}), 8u);
  }
  EXPECT_TRUE(one.cache().is_valid() && other.cache().is_valid());
}

// Case 40; without L2 case 45: the pool has exactly the committed blocks, by the names that a Client has for them, and
// a second hit writes nothing.
TEST_P(WithPool, ThePoolHasExactlyWhatWasCommittedAndGetsItOnce) {
  TierEngine one(options(), 64);
  Engine reader(cluster_.client_options());
  const Tokens prompt = prompt_of(1, 4), longer = join(prompt, prompt_of(2, 2));
  one.serve(prompt);
  ASSERT_TRUE(one.cache().flush(kLongNs));
  EXPECT_EQ(*reader.client.lookup(reader.client.hash_tokens(longer)), 4u);
  EXPECT_EQ(one.cache().statistics().written_bytes, 4 * small_geometry().block_bytes());
  one.serve(prompt);
  ASSERT_TRUE(one.cache().flush(kLongNs));
  EXPECT_EQ(one.cache().statistics().written_bytes, 4 * small_geometry().block_bytes());
  EXPECT_EQ(one.cache().statistics().unwritten_blocks, 0u);
}

// Case 41: a fresh engine with the same L3 has the producer's bytes, first in L2 alone, then in L1.
TEST_P(WithPool, FetchedBlocksAreInHostMemoryAloneUntilTheyAreLoaded) {
  TierEngine one(options(), 64), other(options(), 64);
  const Tokens prompt = prompt_of(1, 4);
  one.serve(prompt);
  ASSERT_TRUE(one.cache().flush(kLongNs));
  const Result<RequestId> request = other.cache().open(prompt);
  ASSERT_TRUE(*other.cache().wait_ready(*request, kLongNs));
  EXPECT_EQ(other.cache().fetch_of(*request)->arrived_tokens, 16u);
  const TierStatistics fetched = other.cache().statistics();
  EXPECT_EQ(fetched.free_device_blocks, fetched.device_blocks);
  EXPECT_EQ(fetched.host_blocks - fetched.free_host_blocks, GetParam() == 0 ? 0u : 4u);
  const Result<TierStart> start = other.cache().start(*request);
  ASSERT_TRUE(start);
  EXPECT_EQ(start->shared_tokens, 16u);
  other.finish(*request, prompt, *start);
  ASSERT_TRUE(other.cache().close(*request));
}

TEST_P(WithPool, FewTokensAreNotFetched) {
  TieredCacheOptions few = options();
  few.prefetch.threshold_tokens = 100;
  TierEngine one(options(), 64), other(few, 64);
  one.serve(prompt_of(1, 24));
  ASSERT_TRUE(one.cache().flush(kLongNs));
  one.serve(prompt_of(2, 25));
  ASSERT_TRUE(one.cache().flush(kLongNs));
  EXPECT_EQ(other.serve(prompt_of(1, 24)).cached_tokens, 0u);
  EXPECT_EQ(other.serve(prompt_of(2, 25)).cached_tokens, 100u);
}

TEST_P(WithPool, APoolIsAttachedAndDetachedWhileServing) {
  TieredCacheOptions later = options();
  later.shared.pool = {};
  TierEngine one(later, 64), other(options(), 64);
  one.serve(prompt_of(1, 8));
  const std::vector<std::string> path = {cluster_.path()};
  ASSERT_TRUE(one.cache().attach_pool(path));
  EXPECT_FALSE(one.cache().attach_pool(path));
  // The blocks of before have names now: the next use writes the whole prompt.
  one.serve(prompt_of(1, 8));
  ASSERT_TRUE(one.cache().flush(kLongNs));
  EXPECT_EQ(other.serve(prompt_of(1, 8)).shared_tokens, 32u);
  std::atomic<bool> stops = false;
  std::thread load([&] {
    for (std::uint64_t i = 10; !stops; ++i) one.serve(prompt_of(i % 30 + 10, 6));
  });
  for (int i = 0; i < 10; ++i) {
    EXPECT_TRUE(one.cache().detach_pool());
    EXPECT_FALSE(one.cache().detach_pool());
    EXPECT_TRUE(one.cache().attach_pool(path));
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  stops = true;
  load.join();
  ASSERT_TRUE(one.cache().flush(kLongNs));
  EXPECT_TRUE(one.cache().is_valid());
}

TEST_P(WithPool, AKeeperThatDiesCostsMissesOnly) {
  TieredCacheOptions quick = options();
  quick.shared.keeper_timeout_ns = 100'000'000;
  quick.shared.recovery_ns = 100'000'000;
  quick.prefetch.stop = PrefetchStop::kTimeout;
  quick.prefetch.timeout_base_ns = 200'000'000;
  TierEngine one(quick, 64);
  one.serve(prompt_of(1, 8));
  ASSERT_TRUE(one.cache().flush(kLongNs));
  ASSERT_TRUE(cluster_.keeper().stop());
  EXPECT_EQ(one.serve(prompt_of(2, 8)).cached_tokens, 0u);
  EXPECT_EQ(one.serve(prompt_of(1, 8)).device_tokens, 32u);
  ASSERT_TRUE(one.cache().flush(kLongNs));
  EXPECT_TRUE(one.cache().is_valid());
}

// L3 lost the beginning of a chain: the next write brings the whole path.
TEST_P(WithPool, APathWhoseBeginningThePoolLostIsWrittenAgain) {
  Cluster small(small_geometry().block_bytes(), 32, "coherent");
  TieredCacheOptions given = with_host(pool_options(small), GetParam());
  given.shared.grant_blocks = 4;
  TierEngine one(given, 64), other(given, 64);
  const Tokens prompt = prompt_of(1, 8);
  one.serve(prompt);
  ASSERT_TRUE(one.cache().flush(kLongNs));
  for (std::uint64_t i = 2; i < 10; ++i) {
    other.serve(prompt_of(i, 8));
    ASSERT_TRUE(other.cache().flush(kLongNs));
  }
  one.serve(join(prompt, prompt_of(50, 2)));
  ASSERT_TRUE(one.cache().flush(kLongNs));
  TierEngine third(given, 64);
  EXPECT_EQ(third.serve(join(prompt, prompt_of(50, 2))).cached_tokens, 40u);
}

INSTANTIATE_TEST_SUITE_P(HostRatio, WithPool, ::testing::Values(0.0, 2.0),
                         [](const auto& ratio) { return ratio.param == 0 ? "NoHost" : "Host"; });

// --- Ranks ------------------------------------------------------------------------------------------

TEST(TieredCache, RanksUseEquallyManyTokens) {
  TieredCacheOptions options = with_host(local_options(), 2);
  const auto ranks = make_ranks(2);
  options.ranks = ranks[0];
  TierEngine ahead(options, 32);
  options.ranks = ranks[1];
  TierEngine behind(options, 32);
  const Tokens prompt = prompt_of(1, 6);
  const auto serve_both = [&](const Tokens& one, const Tokens& other) {
    TierStart starts[2];
    std::thread thread([&] { starts[1] = behind.serve(other); });
    starts[0] = ahead.serve(one);
    thread.join();
    return std::pair(starts[0].cached_tokens, starts[1].cached_tokens);
  };
  // Rank 1 has only the first half.
  serve_both(prompt, Tokens(prompt.begin(), prompt.begin() + 12));
  EXPECT_EQ(serve_both(prompt, prompt), std::pair(std::uint64_t{12}, std::uint64_t{12}));
  EXPECT_EQ(serve_both(prompt, prompt), std::pair(std::uint64_t{24}, std::uint64_t{24}));
  EXPECT_TRUE(ahead.cache().is_valid() && behind.cache().is_valid());
}

// A group that was used before: an old decision is no promise of bytes.
TEST(TieredCache, ADecisionOfAnotherRoundIsRefused) {
  TieredCacheOptions options = local_options();
  options.ranks = make_ranks(1)[0];
  const Tokens prompt = prompt_of(1, 4);
  {
    TierEngine first(options, 32);
    first.serve(prompt);
    first.serve(prompt);  // round 2: 4 blocks
  }
  TierEngine second(options, 32);
  second.serve(prompt_of(2, 4));
  const Result<RequestId> request = second.cache().open(prompt_of(3, 4));
  const Result<TierStart> start = second.cache().start(*request);
  ASSERT_FALSE(start);
  EXPECT_EQ(start.error().code, Code::kStale);
  ASSERT_TRUE(second.cache().close(*request));
  EXPECT_TRUE(second.cache().is_valid());
}

// --- Bad input --------------------------------------------------------------------------------------

TEST(TieredCache, BadOptionsAreNamed) {
  const auto expect_refused = [](const TieredCacheOptions& options, const char* named) {
    std::vector<std::byte> tensor(small_geometry().layer_bytes() * 8);
    TieredCacheOptions given = options;
    given.device.layout = "vllm_bknhc";
    given.device.pages = 8;
    std::vector<std::vector<std::byte>> tensors(3, tensor);
    for (auto& each : tensors) given.device.tensors.push_back({each.data(), each.size()});
    const Result<TieredCache> made = TieredCache::make(given);
    ASSERT_FALSE(made) << named;
    EXPECT_NE(std::string(made.error().message).find(named), std::string::npos)
        << made.error().message;
  };
  TieredCacheOptions options = local_options();
  options.shared.share_tp = 3;
  expect_refused(options, "share_tp: is 3, expected a divisor of the 2");
  options.shared.share_tp = 0;
  for (const double ratio : {1.0, 0.5, -1.0, std::numeric_limits<double>::quiet_NaN(),
                             std::numeric_limits<double>::infinity()}) {
    options.host_ratio = ratio;
    expect_refused(options, "host_ratio is");
  }
  options = local_options();
  options.host_bytes = 10;
  expect_refused(options, "host_bytes is 10");
  options.host_ratio = 2;
  expect_refused(options, "one of the two");
  options = with_host(local_options(), 2);
  options.host_layout = "layer_last";
  expect_refused(options, "layer_first, page_first, page_first_direct, page_head");
  options = with_host(local_options(), 2);
  options.host_order = "random";
  expect_refused(options, "random");
  options = local_options();
  options.exclusive = true;
  expect_refused(options, "exclusive needs L2");
  options = local_options();
  options.writes = TierWrites::kBack;
  expect_refused(options, "back needs L2");
  options = local_options();
  options.host_bytes = std::uint64_t{1} << 60;
  expect_refused(options, "expected at most");
  options = with_host(local_options(), 1e9);
  expect_refused(options, "expected at most");
  options = local_options();
  options.fetch_threads = 0;
  expect_refused(options, "fetch_threads is 0");
  options = local_options();
  options.shared.pool = {"/dev/shm/cachalot_no_such_pool"};
  expect_refused(options, "cachalot_no_such_pool");
}

// Pages of committed blocks are others', too: a request cannot take them back.
TEST(TieredCache, ACommitGoesOnFromTheOneBefore) {
  TierEngine engine(local_options(), 16);
  const Tokens prompt = prompt_of(1, 5);
  const Result<RequestId> request = engine.cache().open(prompt);
  const Result<TierStart> start = engine.cache().start(*request);
  ASSERT_TRUE(start);
  engine.finish(*request, prompt, *start);
  const Tokens other = join(Tokens(prompt.begin(), prompt.begin() + 12), prompt_of(2, 2));
  for (const Tokens& tokens : {other, prompt_of(3, 5), Tokens(prompt.begin(), prompt.begin() + 12)})
    EXPECT_EQ(engine.cache().commit(*request, tokens).error().code, Code::kInvalidArgument);
  ASSERT_TRUE(engine.cache().commit(*request, prompt));
  ASSERT_TRUE(engine.cache().close(*request));
  EXPECT_TRUE(engine.cache().is_valid());
  ASSERT_TRUE(engine.cache().clear());
}

// A long prompt leaves L1 in parts, as far as L2 has room.
TEST(TieredCache, APromptLargerThanHostMemoryIsKeptInPart) {
  TieredCacheOptions options = with_host(local_options(), 0.5);
  options.exclusive = true;
  TierEngine engine(options, 8);
  engine.serve(prompt_of(1, 5));
  engine.serve(prompt_of(2, 5));
  ASSERT_TRUE(engine.cache().flush(kLongNs));
  EXPECT_GT(engine.cache().statistics().demoted_blocks, 0u);
  EXPECT_GT(engine.serve(prompt_of(1, 5)).cached_tokens, 0u);
  EXPECT_TRUE(engine.cache().is_valid());
}

TEST(TieredCache, WritesFromDeviceMemoryDoNotRefuseTheNextRequest) {
  Cluster cluster(small_geometry().block_bytes(), 256, "noncoherent");
  TierEngine engine(pool_options(cluster), 64);
  for (std::uint64_t i = 1; i < 20; ++i) engine.serve(prompt_of(i, 60));
  ASSERT_TRUE(engine.cache().flush(kLongNs));
  EXPECT_TRUE(engine.cache().is_valid());
}

TEST(TieredCache, BadCallsAreNamed) {
  TierEngine engine(local_options(), 8);
  EXPECT_FALSE(engine.cache().open({}));
  const RequestId none{77};
  EXPECT_EQ(engine.cache().start(none).error().code, Code::kNotFound);
  EXPECT_EQ(engine.cache().is_ready(none).error().code, Code::kNotFound);
  EXPECT_EQ(engine.cache().close(none).error().code, Code::kNotFound);
  EXPECT_EQ(engine.cache().detach_pool().error().code, Code::kNotFound);
  const Tokens prompt = prompt_of(1, 2);
  const Result<RequestId> request = engine.cache().open(prompt);
  EXPECT_EQ(engine.cache().commit(*request, prompt).error().code, Code::kInvalidArgument);
  EXPECT_EQ(engine.cache().grow(*request, 8).error().code, Code::kInvalidArgument);
  EXPECT_EQ(engine.cache().wait_layer(*request, 0).error().code, Code::kInvalidArgument);
  EXPECT_EQ(engine.cache().clear().error().code, Code::kBusy);
  ASSERT_TRUE(engine.cache().start(*request));
  EXPECT_EQ(engine.cache().start(*request).error().code, Code::kInvalidArgument);
  EXPECT_EQ(engine.cache().wait_layer(*request, 3).error().code, Code::kInvalidArgument);
  EXPECT_EQ(engine.cache().commit(*request, prompt_of(1, 9)).error().code, Code::kInvalidArgument);
  ASSERT_TRUE(engine.cache().close(*request));
}

}  // namespace
}  // namespace cachalot::client
