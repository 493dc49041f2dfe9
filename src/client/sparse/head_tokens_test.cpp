// Loads of the tokens that each KV head of each layer has chosen for itself. All layouts and block orders:
// kv/copy_engine_test.cpp; ranks and head groups: share_tp/share_tp_property_test.cpp.
#include <gtest/gtest.h>

#include <cstring>
#include <functional>
#include <numeric>

#include "base/fail_point.h"
#include "testing/client/test_cluster.h"

namespace cachalot::client {
namespace {

using Lists = std::vector<std::vector<std::uint32_t>>;
using Spans = std::vector<std::span<const std::uint32_t>>;

constexpr std::size_t kHead = 64;  // bytes of one head of one token: keys or values
constexpr std::uint32_t kLayers = 3, kHeads = 2, kTokens = 4;

// 3 layers of 2 heads; prompts of 5 blocks of 4 tokens.
class HeadTokensTest : public ::testing::Test {
 protected:
  HeadTokensTest() : writer_(cluster_.client_options()), hashes_(store(1, 5)) {}

  static std::vector<PageId> pages(std::size_t count, PageId first = 0) {
    std::vector<PageId> all(count);
    std::iota(all.begin(), all.end(), first);
    return all;
  }
  std::vector<BlockHash> store(std::uint64_t prompt, std::size_t blocks) {
    const auto hashes = writer_.client.hash_tokens(tokens_of(prompt, blocks * kTokens));
    for (std::size_t i = 0; i < blocks; ++i) writer_.compute(hashes[i], static_cast<PageId>(i));
    const Result<Stored> stored =
        writer_.client.store(writer_.cache, nullptr, hashes, pages(blocks));
    EXPECT_EQ(stored ? stored->blocks : 0, blocks);
    return hashes;
  }
  // Where vllm_bknhc has a head's keys or values of a token.
  static std::size_t place(std::size_t page, std::size_t part, std::size_t token,
                           std::size_t head) {
    return (((page * 2 + part) * kTokens + token) * kHeads + head) * kHead;
  }
  // What the prompt's first tokens are, in the pages 0, 1, … of the writer.
  const std::byte* written(std::size_t layer, std::size_t part, std::size_t token,
                           std::size_t head) const {
    return &writer_.memory[layer][place(token / kTokens, part, token % kTokens, head)];
  }
  static Spans spans(const Lists& lists) { return {lists.begin(), lists.end()}; }

  Cluster cluster_;
  Engine writer_;
  std::vector<BlockHash> hashes_;
  const Lists lists_ = {{0, 5, 6, 19}, {5}, {}, {1, 2, 3, 4, 5, 6, 7}, {18, 19}, {0, 8, 16}};
};

TEST_F(HeadTokensTest, EachHeadsTokensComeToTheirPlacesAndNothingElseChanges) {
  Engine reader(cluster_.client_options());
  const std::vector<PageId> to = {9, 3, 11, 0, 7};
  ASSERT_EQ(*reader.client.load_head_tokens(reader.cache, hashes_, to, spans(lists_)), 5u);
  std::vector<std::vector<std::byte>> wanted(kLayers,
                                             std::vector<std::byte>(reader.memory[0].size()));
  for (std::size_t i = 0; i < lists_.size(); ++i) {
    for (const std::uint32_t token : lists_[i]) {
      for (std::size_t part = 0; part < 2; ++part) {
        std::memcpy(
            &wanted[i / kHeads][place(to[token / kTokens], part, token % kTokens, i % kHeads)],
            written(i / kHeads, part, token, i % kHeads), kHead);
      }
    }
  }
  EXPECT_TRUE(reader.memory == wanted);
  const Statistics now = reader.client.statistics();
  EXPECT_EQ(now.loads, 1u);
  EXPECT_EQ(now.loaded_blocks, 5u);
  std::size_t rows = 0;
  for (const auto& list : lists_) rows += list.size();
  EXPECT_EQ(now.loaded_bytes, rows * 2 * kHead);
  EXPECT_EQ(now.copied_bytes, now.loaded_bytes);
}

// Pages of one token: then each head's rows are one array, [layer][head][i][keys, values].
TEST_F(HeadTokensTest, PackedRowsAreOneArrayForEachHead) {
  constexpr std::size_t kMost = 7, kRow = 2 * kHead;
  std::vector<std::byte> rows(kLayers * kHeads * kMost * kRow, std::byte{0x5a});
  Client client = Engine::attach(cluster_.client_options());
  const Result<CacheId> packed = client.register_cache({.layout = "vllm_lhbnc",
                                                        .tensors = {{rows.data(), rows.size()}},
                                                        .pages = kMost,
                                                        .page_tokens = 1});
  ASSERT_TRUE(packed) << packed.error().message;
  ASSERT_EQ(
      *client.load_head_tokens(*packed, hashes_, pages(kMost), spans(lists_), TokenPlace::kPacked),
      5u);
  std::vector<std::byte> wanted(rows.size(), std::byte{0x5a});
  for (std::size_t i = 0; i < lists_.size(); ++i) {
    for (std::size_t k = 0; k < lists_[i].size(); ++k) {
      for (std::size_t part = 0; part < 2; ++part) {
        std::memcpy(&wanted[(i * kMost + k) * kRow + part * kHead],
                    written(i / kHeads, part, lists_[i][k], i % kHeads), kHead);
      }
    }
  }
  EXPECT_TRUE(rows == wanted);
}

// The same, keys and values in arrays of their own.
TEST_F(HeadTokensTest, PackedKeysAndValuesMayLieApart) {
  constexpr std::size_t kMost = 7;
  std::vector<std::byte> rows[2];
  PagedCache description{.pages = kMost, .page_tokens = 1};
  PartStrides strides{
      .layer = kHeads * kMost * kHead, .page = kHead, .head = kMost * kHead, .token = kHead};
  description.strides.emplace();
  for (std::uint32_t part = 0; part < 2; ++part) {
    rows[part].assign(kLayers * kHeads * kMost * kHead, std::byte{0x5a});
    description.tensors.push_back({rows[part].data(), rows[part].size()});
    strides.tensor = part;
    (*description.strides)[part] = strides;
  }
  Client client = Engine::attach(cluster_.client_options());
  const Result<CacheId> packed = client.register_cache(description);
  ASSERT_TRUE(packed) << packed.error().message;
  ASSERT_EQ(
      *client.load_head_tokens(*packed, hashes_, pages(kMost), spans(lists_), TokenPlace::kPacked),
      5u);
  for (std::size_t i = 0; i < lists_.size(); ++i) {
    for (std::size_t k = 0; k < lists_[i].size(); ++k) {
      for (std::size_t part = 0; part < 2; ++part) {
        EXPECT_EQ(std::memcmp(&rows[part][(i * kMost + k) * kHead],
                              written(i / kHeads, part, lists_[i][k], i % kHeads), kHead),
                  0);
      }
    }
  }
}

TEST_F(HeadTokensTest, ALayerCanBeLoadedAlone) {
  Engine reader(cluster_.client_options());
  const Lists second = {{3}, {16}};
  CopyOptions options;
  options.first_layer = 1;
  options.layers = 1;
  ASSERT_EQ(*reader.client.load_head_tokens(reader.cache, hashes_, pages(2), spans(second),
                                            TokenPlace::kPacked, options),
            5u);
  EXPECT_EQ(std::memcmp(&reader.memory[1][place(0, 0, 0, 0)], written(1, 0, 3, 0), kHead), 0);
  EXPECT_EQ(std::memcmp(&reader.memory[1][place(0, 1, 0, 1)], written(1, 1, 16, 1), kHead), 0);
  EXPECT_EQ(reader.memory[0], std::vector<std::byte>(reader.memory[0].size()));
  EXPECT_EQ(reader.memory[2], std::vector<std::byte>(reader.memory[2].size()));
}

TEST_F(HeadTokensTest, OnlyThePrefixThatIsInThePoolCounts) {
  Engine reader(cluster_.client_options());
  std::vector<BlockHash> longer = hashes_;
  longer[3] = writer_.client.hash_tokens(tokens_of(9, 4))[0];
  ASSERT_EQ(*reader.client.load_head_tokens(reader.cache, longer, pages(5), spans(lists_)), 3u);
  EXPECT_EQ(std::memcmp(&reader.memory[2][place(2, 0, 0, 1)], written(2, 0, 8, 1), kHead), 0);
  const Lists none(kLayers * kHeads);
  EXPECT_EQ(*reader.client.load_head_tokens(reader.cache, hashes_, pages(5), spans(none)), 5u);
  EXPECT_EQ(*reader.client.load_head_tokens(reader.cache, {}, {}, spans(none)), 0u);
}

TEST_F(HeadTokensTest, ALatentHasOneHead) {
  Cluster cluster(16384);
  ClientOptions options = cluster.client_options();
  options.geometry = {};
  options.geometry.layers = 2;
  options.geometry.attention = Attention::kLatent;
  options.geometry.kv_lora_rank = 64;
  options.geometry.qk_rope_head_dim = 32;
  options.geometry.block_tokens = 4;
  Engine engine(options, "mla_joint");
  const auto hashes = engine.client.hash_tokens(tokens_of(1, 8));
  for (std::size_t i = 0; i < 2; ++i) engine.compute(hashes[i], static_cast<PageId>(i));
  ASSERT_EQ(engine.client.store(engine.cache, nullptr, hashes, pages(2))->written, 2u);
  const Lists lists = {{1, 6}, {7}};
  constexpr std::size_t kRow = (64 + 32) * 2;
  ASSERT_EQ(*engine.client.load_head_tokens(engine.cache, hashes, pages(1, 8), spans(lists),
                                            TokenPlace::kPacked),
            2u);
  const std::byte* const page = &engine.memory[0][8 * engine.page_bytes()];
  EXPECT_EQ(std::memcmp(page, &engine.memory[0][1 * kRow], kRow), 0);
  EXPECT_EQ(std::memcmp(page + kRow, &engine.memory[0][6 * kRow], kRow), 0);
  // Pages of one token: one array.
  std::vector<std::byte> rows(2 * 3 * kRow);
  const Result<CacheId> packed =
      engine.client.register_cache({.layout = "vllm_lbnhc",
                                    .tensors = {{rows.data(), rows.size()}},
                                    .pages = 3,
                                    .page_tokens = 1});
  ASSERT_TRUE(packed) << packed.error().message;
  ASSERT_EQ(
      *engine.client.load_head_tokens(*packed, hashes, pages(3), spans(lists), TokenPlace::kPacked),
      2u);
  EXPECT_EQ(std::memcmp(&rows[kRow], &engine.memory[0][6 * kRow], kRow), 0);
  EXPECT_EQ(std::memcmp(&rows[3 * kRow], &engine.memory[1][7 * kRow], kRow), 0);
  const Lists two_heads(4);
  const auto refused =
      engine.client.load_head_tokens(engine.cache, hashes, pages(2), spans(two_heads));
  ASSERT_FALSE(refused);
  EXPECT_STREQ(
      refused.error().message,
      "tokens: 4 lists, expected 2: one for each of 2 layer(s) and 1 head(s); a latent has "
      "one head");
}

TEST_F(HeadTokensTest, BadCallsAreRefusedByNameAndValueBeforeAByteMoves) {
  Engine reader(cluster_.client_options());
  const auto refused = [&](const char* words, Lists lists, std::vector<PageId> to,
                           TokenPlace place = TokenPlace::kOwn, CopyOptions options = {}) {
    const auto loaded =
        reader.client.load_head_tokens(reader.cache, hashes_, to, spans(lists), place, options);
    ASSERT_FALSE(loaded) << words;
    EXPECT_EQ(loaded.error().code, Code::kInvalidArgument);
    EXPECT_STREQ(loaded.error().message, words);
  };
  refused("tokens: 5 lists, expected 6: one for each of 3 layer(s) and 2 head(s)", Lists(5),
          pages(5));
  refused("tokens: 6 lists, expected 2: one for each of 1 layer(s) and 2 head(s)", lists_, pages(5),
          TokenPlace::kOwn, {.first_layer = 2});
  Lists lists = lists_;
  lists[3] = {3, 20};
  refused("tokens: layer 1, head 1: number 1 is token 20, expected below the 20 of the blocks",
          lists, pages(5));
  refused(
      "tokens: layer 2, head 1: number 0 is token 4294967295, expected below the 20 of the "
      "blocks",
      {{1}, {~0u}}, pages(5), TokenPlace::kPacked, {.first_layer = 2});
  lists[3] = {3, 3};
  refused(
      "tokens: layer 1, head 1: token 3 comes after token 3, expected ascending tokens that "
      "differ",
      lists, pages(5));
  lists[3] = {3, 7, 5};
  refused(
      "tokens: layer 1, head 1: token 5 comes after token 7, expected ascending tokens that "
      "differ",
      lists, pages(5));
  refused("pages: 4 were given for 5 blocks, expected 1 page(s) each", lists_, pages(4));
  refused("pages: 1 of 4 token(s), expected 2: layer 1, head 1 has 7 tokens", lists_, pages(1),
          TokenPlace::kPacked);
  refused("page: 16 is not below the cache's 16", lists_, pages(2, 15), TokenPlace::kPacked);
  refused("pages: number 0 and number 1 are both page 2, expected pages that differ", lists_,
          {2, 2}, TokenPlace::kPacked);
  refused("layers: 2 from 2 on, of a rank that has 3", lists_, pages(5), TokenPlace::kOwn,
          {.first_layer = 2, .layers = 2});
  const auto late = reader.client.load_head_tokens(reader.cache, hashes_, pages(5), spans(lists_),
                                                   TokenPlace::kOwn, {.timeout_ns = 0});
  ASSERT_FALSE(late);
  EXPECT_EQ(late.error().code, Code::kTimeout);
  for (const auto& tensor : reader.memory) EXPECT_EQ(tensor, std::vector<std::byte>(tensor.size()));
  ASSERT_TRUE(reader.client.unregister_cache(reader.cache));
  EXPECT_EQ(
      reader.client.load_head_tokens(reader.cache, hashes_, pages(5), spans(lists_)).error().code,
      Code::kNotFound);
  ASSERT_TRUE(reader.client.detach());
  EXPECT_NE(std::strstr(
                reader.client.load_head_tokens(reader.cache, hashes_, pages(5), {}).error().message,
                "detached"),
            nullptr);
}

#ifdef CACHALOT_FAIL_POINTS
std::function<void()>* after_copy = nullptr;

// R6: the rows of a block that was evicted while they were copied are not believed.
TEST_F(HeadTokensTest, RowsOfABlockThatWasReusedDuringTheReadDoNotCount) {
  Engine reader(cluster_.client_options());
  std::function<void()> evict = [&] {
    for (std::uint64_t prompt = 100; prompt < 110; ++prompt) (void)store(prompt, 8);
  };
  after_copy = &evict;
  base::fail_point_handler = [](base::FailPoint point) {
    if (point != base::FailPoint::kReadCopied || after_copy == nullptr) return;
    (*std::exchange(after_copy, nullptr))();
  };
  const auto loaded =
      reader.client.load_head_tokens(reader.cache, hashes_, pages(5), spans(lists_));
  base::fail_point_handler = nullptr;
  ASSERT_TRUE(loaded) << loaded.error().message;
  EXPECT_EQ(*loaded, 0u);
  EXPECT_GT(reader.client.statistics().stale_blocks, 0u);
}
#endif

}  // namespace
}  // namespace cachalot::client
