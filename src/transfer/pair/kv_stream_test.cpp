#include "transfer/pair/kv_stream.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <string>
#include <vector>

#include "testing/transfer/test_cache.h"

namespace cachalot::transfer {
namespace {

std::vector<std::uint64_t> addresses(const ByteStream& stream) {
  std::vector<std::uint64_t> all;
  ByteStreamCursor cursor(stream);
  for (Piece piece = cursor.next(~0u); piece.bytes > 0; piece = cursor.next(~0u)) {
    for (std::uint64_t i = 0; i < piece.bytes; ++i) all.push_back(piece.at + i);
  }
  return all;
}

// The loops of an order, one inside the other, element by element.
class NaiveStream {
 public:
  NaiveStream(TestCache& cache, const KvSlice& slice, const StreamOrder& order)
      : cache_(cache), slice_(slice), order_(order) {
    for (at_.layer = slice.layers.first; at_.layer < slice.layers.last; ++at_.layer) {
      first_ = 0;
      tokens_ = slice.tokens;
      loop(loop_letters(order.loops));
    }
  }
  std::vector<std::uint64_t> take() { return std::move(addresses_); }

 private:
  void loop(const char* letters) {
    switch (*letters) {
      case 'K':
        for (at_.part = 0; at_.part < 2; ++at_.part) loop(letters + 1);
        return;
      case 'H':
        for (at_.head = slice_.heads.first; at_.head < slice_.heads.last; ++at_.head)
          loop(letters + 1);
        return;
      case 'B':
        for (first_ = 0; first_ < slice_.tokens; first_ += order_.page_tokens) {
          tokens_ = std::min<std::uint64_t>(order_.page_tokens, slice_.tokens - first_);
          loop(letters + 1);
        }
        first_ = 0;
        return;
      case 'N':
        for (std::uint64_t i = 0; i < tokens_; ++i) {
          at_.token = slice_.first_token + first_ + i;
          loop(letters + 1);
        }
        return;
      default:
        const auto part = static_cast<std::uint32_t>(at_.part);
        for (at_.byte = 0; at_.byte < cache_.geometry().content_bytes(part); ++at_.byte) {
          addresses_.push_back(reinterpret_cast<std::uintptr_t>(&cache_.at(at_)));
        }
    }
  }

  TestCache& cache_;
  const KvSlice& slice_;
  const StreamOrder& order_;
  Element at_{};
  std::uint64_t first_ = 0, tokens_ = 0;
  std::vector<std::uint64_t> addresses_;
};

Range any_range(std::uint32_t count, base::Rng& rng) {
  const auto first = static_cast<std::uint32_t>(rng.below(count));
  return {first, first + 1 + static_cast<std::uint32_t>(rng.below(count - first))};
}

RC_GTEST_PROP(KvStream, VisitsTheElementsInTheOrderOfItsLoops, ()) {
  base::Rng rng(any_seed());
  const Attention attention = rng.chance(0.3) ? Attention::kLatent : Attention::kGrouped;
  const KvGeometry geometry = any_model(attention, static_cast<std::uint32_t>(1 + rng.below(4)),
                                        static_cast<std::uint32_t>(1 + rng.below(3)), rng);
  const auto page_tokens = static_cast<std::uint32_t>(1 + rng.below(8));
  const std::uint64_t tokens = 1 + rng.below(30), first = rng.chance(0.5) ? 0 : rng.below(12);
  TestCache cache(geometry, any_layout(geometry, rng), page_tokens, first + tokens, rng);
  const kv::EngineCache view = cache.view();
  const KvSlice slice{cache.pages(), first, tokens, any_range(geometry.layers, rng),
                      any_range(geometry.heads(), rng)};
  const auto shape = stream_shape(view, slice);
  RC_ASSERT(shape.ok());
  int possible = 0;
  for (std::uint32_t i = 0; i < kLoopOrders; ++i) {
    for (std::uint32_t unit = 0; unit <= page_tokens; ++unit) {
      const StreamOrder order{static_cast<Loops>(i), unit};
      const auto stream = kv_stream(view, slice, order);
      RC_ASSERT(stream.ok() == is_possible(*shape, order));
      if (!stream.ok()) continue;
      ++possible;
      RC_ASSERT(addresses(*stream) == NaiveStream(cache, slice, order).take());
      RC_ASSERT(stream->turns() == slice.layers.count());
    }
  }
  RC_ASSERT(possible >= 3);
}

TEST(KvStream, ARequestOf32KTokensHasFewNumbers) {
  KvGeometry g;
  g.layers = 64;
  g.kv_heads = 8;
  g.head_dim = 128;
  g.block_tokens = 16;
  // No memory is touched.
  std::vector<kv::Tensor> tensors;
  const std::uint64_t bytes = std::uint64_t{2} * 4096 * 16 * 8 * 256;
  for (std::uint64_t layer = 0; layer < 64; ++layer) {
    tensors.push_back({reinterpret_cast<std::byte*>((layer + 1) << 32), bytes});
  }
  const auto cache = kv::EngineCache::make({g, 16, 4096, 0}, "vllm_kbnhc", tensors);
  ASSERT_TRUE(cache.ok()) << cache.error().message;
  std::vector<std::uint32_t> pages(2048);
  for (std::uint32_t i = 0; i < 2048; ++i) pages[i] = (i * 1237 + 11) % 4096;
  const auto stream = kv_stream(*cache, {pages, 0, 32768, {0, 64}, {0, 8}}, {});
  ASSERT_TRUE(stream.ok()) << stream.error().message;
  EXPECT_EQ(stream->bytes(), g.token_bytes() * 32768);
  EXPECT_EQ(stream->runs(), 2u * 64 * 2048);
  std::size_t numbers = 0;
  for (const Strided& section : stream->sections()) {
    for (const Axis& axis : section.axes()) numbers += axis.offsets.size();
  }
  EXPECT_LE(numbers, 2u * (2048 + 64));
}

// K and V may have unlike strides if the caller describes them.
TEST(KvStream, PartsMayHaveStridesOfTheirOwn) {
  KvGeometry g;
  g.layers = 2;
  g.kv_heads = 3;
  g.head_dim = 2;
  g.dtype = DType::kI8;
  g.block_tokens = 4;
  // Before K, which is in pages of tokens of heads, V: pages of heads of tokens.
  kv::EngineStrides strides;
  strides.tensors = 1;
  strides.part[0] = {.offset = 100, .layer = 50, .page = 24, .head = 2, .token = 6};
  strides.part[1] = {.offset = 0, .layer = 48, .page = 24, .head = 8, .token = 2};
  std::vector<std::byte> memory(300);
  const kv::Tensor tensor{memory.data(), memory.size()};
  const auto cache = kv::EngineCache::with_strides({g, 4, 2, 0}, strides, {&tensor, 1});
  ASSERT_TRUE(cache.ok()) << cache.error().message;
  const std::vector<std::uint32_t> pages = {1, 0};
  const auto stream = kv_stream(*cache, {pages, 0, 5, {1, 2}, {1, 3}}, {});
  ASSERT_TRUE(stream.ok()) << stream.error().message;
  std::vector<std::uint64_t> expected;
  for (std::uint32_t part = 0; part < 2; ++part) {
    const PartStrides& at = strides.part[part];
    for (std::uint64_t token = 0; token < 5; ++token) {
      for (std::uint64_t head = 1; head < 3; ++head) {
        for (std::uint64_t byte = 0; byte < 2; ++byte) {
          expected.push_back(reinterpret_cast<std::uintptr_t>(memory.data()) + at.offset +
                             at.layer + pages[token / 4] * at.page + token % 4 * at.token +
                             head * at.head + byte);
        }
      }
    }
  }
  EXPECT_EQ(addresses(*stream), expected);
  EXPECT_FALSE(kv_stream(*cache, {pages, 0, 5, {1, 2}, {1, 3}}, {Loops::kTokenHeadPart, 0}).ok());
}

// V before K in each head: one step between the parts, but backwards.
TEST(KvStream, ValuesMayLieBeforeTheirKeys) {
  KvGeometry g;
  g.layers = 1;
  g.kv_heads = 2;
  g.head_dim = 3;
  g.dtype = DType::kI8;
  g.block_tokens = 2;
  kv::EngineStrides strides;
  strides.tensors = 1;
  strides.part[0] = {.offset = 3, .page = 24, .head = 6, .token = 12};
  strides.part[1] = {.offset = 0, .page = 24, .head = 6, .token = 12};
  std::vector<std::byte> memory(48);
  const kv::Tensor tensor{memory.data(), memory.size()};
  const auto cache = kv::EngineCache::with_strides({g, 2, 2, 0}, strides, {&tensor, 1});
  ASSERT_TRUE(cache.ok()) << cache.error().message;
  const std::vector<std::uint32_t> pages = {1, 0};
  for (const Loops loops : {Loops::kTokenHeadPart, Loops::kHeadTokenPart, Loops::kTokenPartHead}) {
    const auto stream = kv_stream(*cache, {pages, 0, 3, {0, 1}, {0, 2}}, {loops, 0});
    ASSERT_TRUE(stream.ok()) << stream.error().message;
    const std::vector<std::uint64_t> all = addresses(*stream);
    const auto at = reinterpret_cast<std::uintptr_t>(memory.data());
    EXPECT_EQ(all[0], at + 24 + 3);
    ASSERT_EQ(all.size(), 36u);
    if (loops != Loops::kTokenPartHead) {
      EXPECT_EQ(all[3], at + 24);
    } else {
      EXPECT_EQ(all[3], at + 24 + 6 + 3);
      EXPECT_EQ(all[6], at + 24);
    }
    EXPECT_EQ(stream->lowest(), at);
  }
}

TEST(KvStream, WhatTheCacheHasNotIsRefused) {
  base::Rng rng(1);
  KvGeometry g = any_model(Attention::kGrouped, 4, 3, rng);
  TestCache cache(g, **kv::find_layout("vllm_kbnhc"), 8, 16, rng);
  const kv::EngineCache view = cache.view();
  const auto refused = [&](const KvSlice& slice, StreamOrder order = {}) {
    const auto stream = kv_stream(view, slice, order);
    return stream.ok() ? std::string() : std::string(stream.error().message);
  };
  const std::vector<std::uint32_t> pages = {0, 1}, beyond = {0, view.pages()};
  const Range layers{0, 3}, heads{0, 4};
  EXPECT_EQ(refused({pages, 0, 16, layers, heads}), "");
  const auto has = [](const std::string& text, const char* part) {
    return text.find(part) != std::string::npos;
  };
  EXPECT_TRUE(has(refused({pages, 0, 16, {0, 4}, heads}), "layers [0, 4)"));
  EXPECT_TRUE(has(refused({pages, 0, 16, {2, 1}, heads}), "layers [2, 1)"));
  EXPECT_TRUE(has(refused({pages, 0, 16, {1, 1}, heads}), "layers [1, 1)"));
  EXPECT_TRUE(has(refused({pages, 0, 16, layers, {3, 5}}), "heads [3, 5)"));
  EXPECT_TRUE(has(refused({pages, 0, 17, layers, heads}), "17 tokens"));
  EXPECT_TRUE(has(refused({pages, 0, 0, layers, heads}), "0 tokens"));
  EXPECT_TRUE(has(refused({pages, 10, 7, layers, heads}), "from token 10"));
  EXPECT_TRUE(has(refused({pages, ~std::uint64_t{0}, 2, layers, heads}), "tokens from token"));
  EXPECT_TRUE(has(refused({{}, 0, 1, layers, heads}), "0 pages"));
  EXPECT_TRUE(has(refused({beyond, 0, 16, layers, heads}), "page 1 of the request has the id"));
  // Pages that the tokens do not need are not read.
  EXPECT_EQ(refused({beyond, 0, 8, layers, heads}), "");
  EXPECT_TRUE(has(refused({pages, 0, 16, layers, heads}, {static_cast<Loops>(11), 0}), "unknown"));
  EXPECT_TRUE(has(refused({pages, 0, 16, layers, heads}, {Loops::kPartPageHeadToken, 3}), "KBHN"));
  EXPECT_TRUE(has(refused({pages, 4, 8, layers, heads}, {Loops::kPartPageHeadToken, 8}), "KBHN"));
  EXPECT_TRUE(has(refused({pages, 0, 16, layers, heads}, {Loops::kPartTokenHead, 8}), "KNH"));
}

}  // namespace
}  // namespace cachalot::transfer
