// Hit rates, equal to a count by hand: each prompt once, however an engine calls.
#include "client/hit_rate/prompt_counts.h"

#include <gtest/gtest.h>

#include <numeric>

#include "pool/pool.h"
#include "testing/client/test_cluster.h"

namespace cachalot::client {
namespace {

using pool::ClientCounter;

struct Expected {
  std::uint64_t prompts, asked, from_pool, from_peers = 0, from_storage = 0;
  bool operator==(const Expected&) const = default;
};
std::ostream& operator<<(std::ostream& out, const Expected& e) {
  return out << e.prompts << " prompts, " << e.asked << " blocks: " << e.from_pool << " + "
             << e.from_peers << " + " << e.from_storage;
}
Expected counts_of(const Statistics& s) {
  return {s.prompts, s.prompt_blocks, s.used_pool_blocks, s.used_peer_blocks,
          s.used_storage_blocks};
}

std::vector<PageId> pages_for(std::span<const BlockHash> hashes) {
  std::vector<PageId> pages(hashes.size());
  std::iota(pages.begin(), pages.end(), 0);
  return pages;
}

// A prompt of eight blocks, of which the pool has the first four.
class HitRate : public testing::Test {
 protected:
  explicit HitRate(ClientOptions options = {}) {
    options_ = cluster_.client_options();
    options_.counts_prompts = options.counts_prompts;
    engine_ = std::make_unique<Engine>(options_);
    hashes_ = engine_->client.hash_tokens(tokens_of(1, 8 * 4));
    pages_ = pages_for(hashes_);
    store(0, 4);
  }
  std::size_t lookup() { return *engine_->client.lookup(hashes_); }
  std::size_t load(std::size_t first, std::size_t count) {
    const auto loaded =
        engine_->client.load(engine_->cache, std::span(hashes_).subspan(first, count),
                             std::span(pages_).subspan(first, count));
    return *loaded;
  }
  void store(std::size_t first, std::size_t count) {
    const Result<Stored> stored = engine_->client.store(
        engine_->cache, first == 0 ? nullptr : &hashes_[first - 1],
        std::span(hashes_).subspan(first, count), std::span(pages_).subspan(first, count));
    ASSERT_TRUE(stored) << stored.error().message;
    ASSERT_EQ(stored->blocks, count);
  }
  Expected counts() const { return counts_of(engine_->client.statistics()); }

  Cluster cluster_;
  ClientOptions options_;
  std::unique_ptr<Engine> engine_;
  std::vector<BlockHash> hashes_;
  std::vector<PageId> pages_;
};

TEST_F(HitRate, ALookupAndALoadOfWhatItFoundAreOnePrompt) {
  EXPECT_EQ(lookup(), 4u);
  EXPECT_EQ(load(0, 4), 4u);
  EXPECT_EQ(counts(), (Expected{1, 8, 4}));
  // In the pool, too, also after the engine's end; the older counters count both calls.
  ASSERT_TRUE(engine_->client.detach());
  const Result<pool::Pool> pool = pool::Pool::open({cluster_.path()}, {.read_only = true});
  ASSERT_TRUE(pool) << pool.error().message;
  const pool::ClientCounters totals = pool->state().read_totals();
  EXPECT_EQ(totals[ClientCounter::kPrompts], 1u);
  EXPECT_EQ(totals[ClientCounter::kPromptBlocks], 8u);
  EXPECT_EQ(totals[ClientCounter::kUsedPoolBlocks], 4u);
  EXPECT_EQ(totals[ClientCounter::kUsedPeerBlocks], 0u);
  EXPECT_EQ(totals[ClientCounter::kUsedStorageBlocks], 0u);
  EXPECT_EQ(totals[ClientCounter::kLookedUpBlocks], 12u);
  EXPECT_EQ(totals[ClientCounter::kHitBlocks], 8u);
}

TEST_F(HitRate, ALoadWithoutALookupAsks) {
  EXPECT_EQ(load(0, 8), 4u);
  EXPECT_EQ(load(0, 8), 4u);
  EXPECT_EQ(counts(), (Expected{2, 16, 8}));
}

TEST_F(HitRate, ALookupAloneAsksAndUsesNothing) {
  lookup();
  EXPECT_EQ(counts(), (Expected{1, 8, 0}));
  lookup();  // the engine asks again
  EXPECT_EQ(counts(), (Expected{1, 8, 0}));
}

TEST_F(HitRate, AnEqualPromptCountsAgainAfterALoadOrAStore) {
  lookup();
  load(0, 4);
  lookup();
  EXPECT_EQ(counts(), (Expected{2, 16, 4}));
  store(4, 4);
  EXPECT_EQ(lookup(), 8u);
  load(0, 8);
  EXPECT_EQ(counts(), (Expected{3, 24, 12}));
}

TEST_F(HitRate, TwoEqualPromptsInFlightCountTwice) {
  lookup();
  lookup();
  load(0, 4);
  load(0, 4);
  EXPECT_EQ(counts(), (Expected{2, 16, 8}));
}

TEST_F(HitRate, LoadsOfPartsAreOnePrompt) {
  lookup();
  load(1, 1);  // the engine has block 0 itself
  load(2, 2);
  EXPECT_EQ(counts(), (Expected{1, 8, 3}));
}

TEST_F(HitRate, ALoadThatIsTriedUntilBlocksComeIsOnePrompt) {
  const std::vector<BlockHash> other = engine_->client.hash_tokens(tokens_of(2, 4 * 4));
  const auto try_load = [&] {
    return *engine_->client.load(engine_->cache, other, std::span(pages_).first(4));
  };
  EXPECT_EQ(*engine_->client.lookup(other), 0u);
  EXPECT_EQ(try_load(), 0u);
  EXPECT_EQ(try_load(), 0u);
  Engine writer(options_);
  ASSERT_TRUE(writer.client.store(writer.cache, nullptr, other, std::span(pages_).first(4)));
  EXPECT_EQ(try_load(), 4u);
  EXPECT_EQ(counts(), (Expected{1, 4, 4}));
}

TEST_F(HitRate, PromptsWithACommonBeginningAreApart) {
  std::vector<std::uint32_t> tokens = tokens_of(1, 8 * 4);
  tokens.back() += 1;
  const std::vector<BlockHash> other = engine_->client.hash_tokens(tokens);
  ASSERT_EQ(other[6], hashes_[6]);
  lookup();
  EXPECT_EQ(*engine_->client.lookup(other), 4u);
  load(0, 4);
  load(0, 4);
  EXPECT_EQ(counts(), (Expected{2, 16, 8}));
}

TEST_F(HitRate, AsynchronousLoadsCountAsOthers) {
  lookup();
  const Result<Token> token = engine_->client.load_async(
      engine_->cache, std::span(hashes_).first(4), std::span(pages_).first(4));
  ASSERT_TRUE(token);
  EXPECT_EQ(engine_->client.wait(*token)->blocks, 4u);
  EXPECT_EQ(counts(), (Expected{1, 8, 4}));
}

TEST_F(HitRate, ALoadLayerByLayerUsesItsBlocksWithItsLastLayer) {
  lookup();
  {
    auto load = engine_->client.begin_load(engine_->cache, std::span(hashes_).first(4),
                                           std::span(pages_).first(4));
    ASSERT_TRUE(load) << load.error().message;
    ASSERT_EQ(*load->load_layer(0), 4u);
    ASSERT_EQ(*load->load_layer(1), 4u);
    EXPECT_EQ(counts(), (Expected{1, 8, 0}));
    ASSERT_EQ(*load->load_layer(2), 4u);
  }
  EXPECT_EQ(counts(), (Expected{1, 8, 4}));
  // Loads of single layers: those after the first one go on with what it has counted.
  for (std::uint32_t layer = 0; layer < 3; ++layer) {
    CopyOptions options;
    options.first_layer = layer;
    options.layers = 1;
    EXPECT_EQ(*engine_->client.load(engine_->cache, hashes_, pages_, options), 4u);
  }
  EXPECT_EQ(counts(), (Expected{2, 16, 8}));
}

TEST_F(HitRate, BlocksThatAreNotValidAreNotUsed) {
  lookup();
  const auto late = engine_->client.load(engine_->cache, std::span(hashes_).first(4),
                                         std::span(pages_).first(4), {.timeout_ns = 0});
  ASSERT_FALSE(late);
  EXPECT_EQ(late.error().code, Code::kTimeout);
  EXPECT_EQ(counts(), (Expected{1, 8, 0}));
}

TEST_F(HitRate, ObjectsAskForOneBlockEach) {
  std::vector<std::byte> bytes(1000);
  ASSERT_TRUE(engine_->client.register_buffer(bytes.data(), bytes.size()));
  const Buffer part{bytes.data(), bytes.size()};
  ASSERT_TRUE(engine_->client.put("a", {&part, 1}));
  ASSERT_TRUE(engine_->client.get("a", {&part, 1}));
  ASSERT_FALSE(engine_->client.get("b", {&part, 1}));
  EXPECT_EQ(counts(), (Expected{2, 2, 1}));
}

TEST_F(HitRate, HeadGroupsCountOnceABlock) {
  options_.share_tp = 2;
  Engine engine(options_);
  ASSERT_TRUE(engine.client.store(engine.cache, nullptr, std::span(hashes_).first(4),
                                  std::span(pages_).first(4)));
  EXPECT_EQ(*engine.client.lookup(hashes_), 4u);
  EXPECT_EQ(*engine.client.load(engine.cache, hashes_, pages_), 4u);
  EXPECT_EQ(counts_of(engine.client.statistics()), (Expected{1, 8, 4}));
  EXPECT_EQ(engine.client.statistics().looked_up_blocks, 2u * 16);
}

TEST_F(HitRate, WhoeverCountsTwiceIsRefused) {
  const Status counted = engine_->client.count_prompt({.asked = 8});
  ASSERT_FALSE(counted);
  EXPECT_EQ(counted.error().code, Code::kInvalidArgument);
  EXPECT_NE(std::string(counted.error().message).find("counts_prompts"), std::string::npos);
}

class CountedByCaller : public HitRate {
 protected:
  CountedByCaller() : HitRate({.counts_prompts = true}) {}
};

TEST_F(CountedByCaller, OnlyCountPromptCounts) {
  lookup();
  load(0, 4);
  EXPECT_EQ(counts(), (Expected{0, 0, 0}));
  ASSERT_TRUE(engine_->client.count_prompt(
      {.asked = 10, .from_pool = 4, .from_peers = 3, .from_storage = 2}));
  ASSERT_TRUE(engine_->client.count_prompt({}));  // it had all itself
  EXPECT_EQ(counts(), (Expected{1, 10, 4, 3, 2}));
}

TEST_F(CountedByCaller, MoreUsedThanAskedForIsAnError) {
  const std::uint64_t most = ~std::uint64_t{0};
  for (const PromptBlocks& wrong :
       {PromptBlocks{.asked = 3, .from_pool = 4},
        PromptBlocks{.asked = 3, .from_peers = 2, .from_storage = 2},
        PromptBlocks{.asked = 3, .from_pool = 1, .from_peers = most, .from_storage = 1}}) {
    const Status counted = engine_->client.count_prompt(wrong);
    ASSERT_FALSE(counted);
    EXPECT_EQ(counted.error().code, Code::kInvalidArgument);
    EXPECT_NE(std::string(counted.error().message).find("expected at most the 3"),
              std::string::npos)
        << counted.error().message;
  }
  EXPECT_EQ(counts(), (Expected{0, 0, 0}));
}

// What a prefetch finds in storage is used from storage once, and from the pool by later prompts.
TEST(PromptCounts, BlocksThatStorageBroughtForThePromptAreFromStorage) {
  Counters counters;
  PromptCounts prompts(counters, true);
  std::vector<BlockHash> hashes;
  for (std::uint64_t i = 0; i < 10; ++i) hashes.push_back({i, 7});
  const auto load = [&](std::size_t first, std::size_t count, std::size_t blocks) {
    const auto begun = prompts.begin_load(std::span(hashes).subspan(first, count));
    prompts.end_load(begun, blocks);
  };
  prompts.ask(hashes);          // a lookup finds 2
  prompts.ask(hashes, {2, 5});  // a prefetch: 5 are in storage
  prompts.ask(hashes, {4, 3});  // asked again: 2 have come
  load(1, 9, 6);                // block 0 is the engine's own
  EXPECT_EQ(counts_of(counters.read()), (Expected{1, 10, 1, 0, 5}));
  prompts.ask(hashes);
  load(0, 10, 7);
  EXPECT_EQ(counts_of(counters.read()), (Expected{2, 20, 8, 0, 5}));
}

TEST(PromptCounts, OnlySoManyPromptsAreRemembered) {
  Counters counters;
  PromptCounts prompts(counters, true);
  const auto hash = [](std::uint64_t i) { return BlockHash{i, 9}; };
  for (std::uint64_t i = 0; i < 65; ++i) {
    const BlockHash one = hash(i);
    prompts.ask({&one, 1});
  }
  const BlockHash forgotten = hash(0), last = hash(64);
  prompts.end_load(prompts.begin_load({&last, 1}), 1);
  EXPECT_EQ(counts_of(counters.read()), (Expected{65, 65, 1}));
  prompts.end_load(prompts.begin_load({&forgotten, 1}), 1);
  EXPECT_EQ(counts_of(counters.read()), (Expected{66, 66, 2}));
}

}  // namespace
}  // namespace cachalot::client
