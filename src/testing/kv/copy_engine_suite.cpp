// One suite for every copy engine in every domain it can work in. Which ones: the test program that links it
// (copy_engine_test.cpp, cuda/gpu_test.cpp).
#include "testing/kv/copy_engine_suite.h"

#include <gtest/gtest.h>
#include <rapidcheck.h>

#include <string>
#include <vector>

#include "testing/kv/random_case.h"

namespace cachalot::kv {
namespace {

using memory::FusedHash;

// Gather from one cache, scatter into another, of other pages and mostly another layout; whole, by
// layers, sparse; the hash of both ways.
TEST_P(EveryEngine, BringsWhatAnElementByElementCopyWouldBring) {
  const auto [engine, domain, isa] = GetParam();
  const bool good = rc::check([engine = engine, domain = domain, isa = isa] {
    Case(*rc::gen::arbitrary<std::uint64_t>(), domain, engine, isa).run();
  });
  EXPECT_TRUE(good);
}

// --- what is refused, and that nothing moves then

// One block of 8 tokens in 3 layers, 2 heads of 24 numbers: rows of 96 bytes, pages of 4 tokens.
class Small {
 public:
  Small(Setting setting, const char* layout, const char* order)
      : world(std::get<1>(setting), std::get<2>(setting), 1),
        cache({geometry(), 4, 7, 0}, (*find_layout(layout))->grouped, 1),
        view(*EngineCache::make(cache.shape, layout, cache.views())),
        engine(make_engine(std::get<0>(setting), view, cache.views(), **find_block_order(order),
                           world.writer(), world)),
        extents(world.extents(true, 0, kBytes, kBytes)) {}

  static constexpr std::uint64_t kBytes = 2 * 3 * 8 * 96;
  static KvGeometry geometry() {
    KvGeometry g;
    g.layers = 3;
    g.kv_heads = 2;
    g.head_dim = 24;
    g.block_tokens = 8;
    return g;
  }

  BlockCopy block() { return {extents, pages}; }

  void expect_refused(const BlockCopy& wrong, bool gather, const char* part,
                      LayerRange layers = {}) {
    const auto before = cache.memory;
    const std::vector<std::byte> pool = pool_bytes();
    const BlockCopy blocks[] = {block(), wrong};
    const Status status = gather ? engine->gather(blocks, layers) : engine->scatter(blocks, layers);
    ASSERT_FALSE(status) << part;
    EXPECT_EQ(status.error().code, Code::kInvalidArgument);
    EXPECT_NE(std::string(status.error().message).find(part), std::string::npos)
        << status.error().message;
    EXPECT_EQ(cache.memory, before);
    EXPECT_EQ(pool, pool_bytes());
  }
  std::vector<std::byte> pool_bytes() {
    std::vector<std::byte> pool(kBytes);
    world.writer().read_bulk(pool.data(), extents[0].at, kBytes);
    return pool;
  }
  void expect_refused(const BlockCopy& wrong, const char* part) {
    expect_refused(wrong, true, part);
    expect_refused(wrong, false, part);
  }

  World world;
  reference::Cache cache;
  EngineCache view;
  std::unique_ptr<CopyEngine> engine;
  std::vector<memory::Extent> extents;
  std::vector<std::uint32_t> pages = {5, 2};
};

TEST_P(EveryEngine, RefusesPagesThatThereAreNotBeforeAByteMoves) {
  Small small(GetParam(), "vllm_kbnhc", "layer_first");
  BlockCopy wrong = small.block();
  for (const std::uint32_t page : {7u, 0x80000000u, 0xffffffffu}) {
    const std::uint32_t pages[] = {0, page};
    wrong.pages = pages;
    const std::string part = "block 1: page id " + std::to_string(page) + ", expected below 7";
    small.expect_refused(wrong, part.c_str());
  }
  wrong.pages = std::span(small.pages).first(1);
  small.expect_refused(wrong, "1 page ids, expected 2");
  wrong.pages = {};
  small.expect_refused(wrong, "0 page ids, expected 2");
}

TEST_P(EveryEngine, RefusesPoolMemoryThatDoesNotFitBeforeAByteMoves) {
  Small small(GetParam(), "vllm_kbnhc", "layer_first");
  BlockCopy wrong = small.block();
  memory::Extent extents[] = {small.extents[0], {small.extents[0].at, 64}};
  wrong.pool = std::span(extents, 1);
  extents[0].bytes -= 64;
  small.expect_refused(wrong, "extents of 4544 bytes, expected at least 4608");
  extents[0] = {small.extents[0].at + 8, Small::kBytes};
  small.expect_refused(wrong, "expected whole lines");
  extents[0] = {small.extents[0].at, Small::kBytes + 8};
  small.expect_refused(wrong, "expected whole lines");
  extents[0] = {nullptr, Small::kBytes};
  small.expect_refused(wrong, "expected whole lines");
  extents[0] = {small.extents[0].at, ~std::uint64_t{63}};
  wrong.pool = extents;
  small.expect_refused(wrong, "expected whole lines");
  wrong.pool = {};
  small.expect_refused(wrong, "extents of 0 bytes");
}

TEST_P(EveryEngine, RefusesTokensAndLayersThatThereAreNot) {
  Small small(GetParam(), "vllm_kbnhc", "layer_first");
  BlockCopy wrong = small.block();
  const std::vector<std::vector<TokenRange>> kBad = {{{0, 9}}, {{8, 9}},         {{3, 3}},
                                                     {{4, 2}}, {{2, 4}, {3, 5}}, {{4, 6}, {0, 2}}};
  for (const std::vector<TokenRange>& ranges : kBad) {
    wrong.tokens = ranges;
    small.expect_refused(wrong, "expected a range within");
  }
  wrong.tokens = {};
  small.expect_refused(wrong, true, "layers 1 to 4", {1, 4});
  small.expect_refused(wrong, false, "layers 3 to 3", {3, 3});
}

// Two tokens are 192 bytes, whole lines; one is 96.
TEST_P(EveryEngine, GathersWholeLinesOnly) {
  Small small(GetParam(), "vllm_kbnhc", "layer_first");
  BlockCopy block = small.block();
  const TokenRange one[] = {{2, 3}}, two[] = {{2, 4}}, apart[] = {{0, 2}, {4, 6}};
  block.tokens = one;
  small.expect_refused(block, true, "expected whole 64-byte lines");
  EXPECT_TRUE(small.engine->scatter({&block, 1}));
  block.tokens = two;
  EXPECT_TRUE(small.engine->gather({&block, 1}));
  block.tokens = apart;
  EXPECT_TRUE(small.engine->gather({&block, 1}));
}

TEST_P(EveryEngine, HashesOneStretchOfABlockAtATime) {
  Small small(GetParam(), "vllm_kbnhc", "layer_first");
  BlockCopy block = small.block();
  FusedHash hash(Small::kBytes);
  block.hash = &hash;
  const TokenRange apart[] = {{0, 2}, {4, 6}}, one[] = {{2, 3}};
  block.tokens = apart;
  small.expect_refused(block, "expected one, as the hash");
  block.tokens = one;
  small.expect_refused(block, "expected one, as the hash");  // in 6 layers and parts
  block.tokens = {};
  for (std::uint32_t l = 0; l < 3; ++l) ASSERT_TRUE(small.engine->gather({&block, 1}, {l, l + 1}));
  small.world.writer().complete();
  EXPECT_EQ(hash.finish(), memory::hash_lines(small.pool_bytes().data(), Small::kBytes));
  // Keys of all layers come before the values: a layer is two stretches.
  Small direct(GetParam(), "vllm_kbnhc", "page_first_direct");
  BlockCopy other = direct.block();
  FusedHash another(Small::kBytes);
  other.hash = &another;
  direct.expect_refused(other, true, "2 stretches", {0, 1});
}

TEST_P(EveryEngine, CopiesNothingWhenNothingIsAsked) {
  Small small(GetParam(), "vllm_kbnhc", "layer_first");
  EXPECT_TRUE(small.engine->gather({}));
  EXPECT_TRUE(small.engine->scatter({}, {1, 2}));
}

}  // namespace
}  // namespace cachalot::kv
