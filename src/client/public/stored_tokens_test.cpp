// A store keeps the tokens of its blocks in the pool, where they fit.

#include <map>
#include <utility>

#include "pool/format/notes.h"
#include "pool/pool.h"
#include "pool/reader/published_blocks.h"
#include "testing/client/test_cluster.h"

namespace cachalot::client {
namespace {

constexpr std::uint32_t kPages[] = {0, 1, 2, 3, 4, 5, 6, 7};

// What the pool holds, by hash.
std::map<std::uint64_t, std::vector<std::uint32_t>> kept_tokens(const std::string& path) {
  std::map<std::uint64_t, std::vector<std::uint32_t>> kept;
  const Result<pool::Pool> pool = pool::Pool::open({path});
  EXPECT_TRUE(pool);
  pool::for_each_published(pool->access(), [&](const pool::Entry& entry) {
    const BlockHash hash{entry.hash_low, entry.hash_high};
    pool::read_note(pool->access(), {entry.block, entry.generation}, hash, kept[hash.low]);
  });
  return kept;
}

class StoredTokensTest : public testing::TestWithParam<const char*> {
 protected:
  Cluster cluster_{small_geometry().block_bytes(), 64, GetParam()};
  Engine engine_{cluster_.client_options()};
};

TEST_P(StoredTokensTest, EachBlockHasItsOwnTokensAlsoAfterALaterStoreOfTheRest) {
  const std::vector<std::uint32_t> tokens = tokens_of(1, 32);
  const std::vector<BlockHash> hashes = engine_.client.hash_tokens(tokens);
  CopyOptions options;
  options.tokens = std::span(tokens).first(12);
  ASSERT_TRUE(engine_.client.store(engine_.cache, nullptr, std::span(hashes).first(3),
                                   std::span(kPages).first(3), options));
  options.tokens = tokens;
  const Result<Stored> stored =
      engine_.client.store(engine_.cache, nullptr, hashes, kPages, options);
  ASSERT_TRUE(stored);
  EXPECT_EQ(stored->written, 5u);
  const auto kept = kept_tokens(cluster_.path());
  ASSERT_EQ(kept.size(), 8u);
  for (std::size_t i = 0; i < 8; ++i) {
    const auto from = tokens.begin() + static_cast<std::ptrdiff_t>(4 * i);
    EXPECT_EQ(kept.at(hashes[i].low), std::vector<std::uint32_t>(from, from + 4)) << i;
  }
}

TEST_P(StoredTokensTest, AnAsynchronousStoreKeepsACopyOfThem) {
  std::vector<std::uint32_t> tokens = tokens_of(2, 32);
  const std::vector<BlockHash> hashes = engine_.client.hash_tokens(tokens);
  CopyOptions options;
  options.tokens = tokens;
  const Result<Token> token =
      engine_.client.store_async(engine_.cache, nullptr, hashes, kPages, options);
  ASSERT_TRUE(token);
  const std::uint32_t last = std::exchange(tokens.back(), 0);
  ASSERT_TRUE(engine_.client.wait(*token));
  EXPECT_EQ(kept_tokens(cluster_.path()).at(hashes[7].low).back(), last);
}

TEST_P(StoredTokensTest, BlocksThatAreStoredWithoutHaveNone) {
  const std::vector<BlockHash> hashes = engine_.client.hash_tokens(tokens_of(3, 32));
  ASSERT_TRUE(engine_.client.store(engine_.cache, nullptr, hashes, kPages));
  for (const auto& [hash, tokens] : kept_tokens(cluster_.path())) EXPECT_TRUE(tokens.empty());
}

TEST_P(StoredTokensTest, AnotherNumberThanTheBlocksHaveIsRefused) {
  const std::vector<std::uint32_t> tokens = tokens_of(4, 31);
  const std::vector<BlockHash> hashes = engine_.client.hash_tokens(tokens_of(4, 32));
  CopyOptions options;
  options.tokens = tokens;
  for (const bool is_async : {false, true}) {
    const Error error =
        is_async
            ? engine_.client.store_async(engine_.cache, nullptr, hashes, kPages, options).error()
            : engine_.client.store(engine_.cache, nullptr, hashes, kPages, options).error();
    EXPECT_EQ(error.code, Code::kInvalidArgument);
    EXPECT_NE(std::string(error.message).find("tokens: 31, expected 4 for each of 8"),
              std::string::npos)
        << error.message;
  }
}

// Blocks of more tokens than a note has room for are stored as ever.
TEST(StoredTokens, ThatDoNotFitAreNotKept) {
  KvGeometry geometry = small_geometry();
  geometry.block_tokens = 512;
  const Cluster cluster(geometry.block_bytes(), 16, "coherent");
  ClientOptions options = cluster.client_options();
  options.geometry = geometry;
  Engine engine(options, "vllm_bknhc", 2);
  const std::vector<std::uint32_t> tokens = tokens_of(1, 1024);
  const std::vector<BlockHash> hashes = engine.client.hash_tokens(tokens);
  CopyOptions copy;
  copy.tokens = tokens;
  const Result<Stored> stored =
      engine.client.store(engine.cache, nullptr, hashes, std::span(kPages).first(2), copy);
  ASSERT_TRUE(stored);
  EXPECT_EQ(stored->written, 2u);
  for (const auto& [hash, kept] : kept_tokens(cluster.path())) EXPECT_TRUE(kept.empty());
}

INSTANTIATE_TEST_SUITE_P(Domains, StoredTokensTest, testing::Values("coherent", "noncoherent"),
                         [](const auto& domain) { return std::string(domain.param); });

}  // namespace
}  // namespace cachalot::client
