#include "transfer/pair/convert.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "testing/transfer/test_instance.h"

namespace cachalot::transfer {
namespace {

// A buffer with its memory.
struct OwnedBuffer {
  OwnedBuffer(const KvGeometry& geometry, const StreamOrder& order, std::uint64_t tokens)
      : memory(*RequestBuffer::bytes(geometry, order, tokens)),
        buffer(*RequestBuffer::make(geometry, order, tokens, memory)) {}

  std::vector<std::byte> memory;
  RequestBuffer buffer;
};

KvSlice all_of(TestCache& cache, std::uint64_t tokens) {
  return {cache.pages(), 0, tokens, {0, cache.geometry().layers}, {0, cache.geometry().heads()}};
}

ByteStream stream_of(const kv::EngineCache& cache, const KvSlice& slice, const StreamOrder& order) {
  Result<ByteStream> stream = kv_stream(cache, slice, order);
  RC_ASSERT(stream.ok());
  return *std::move(stream);
}

struct Two {
  explicit Two(base::Rng& rng)
      : geometry(any_model(rng.chance(0.3) ? Attention::kLatent : Attention::kGrouped,
                           static_cast<std::uint32_t>(1 + rng.below(4)),
                           static_cast<std::uint32_t>(1 + rng.below(3)), rng)),
        tokens(1 + rng.below(30)),
        source(geometry, any_layout(geometry, rng), any_page(rng), tokens, rng),
        destination(geometry, any_layout(geometry, rng), any_page(rng), tokens, rng) {
    source.fill(layers(), heads(), 0, tokens);
    const auto before = destination.memory();
    destination.fill(layers(), heads(), 0, tokens);
    expected = std::exchange(destination.memory(), before);
  }
  static std::uint32_t any_page(base::Rng& rng) {
    return static_cast<std::uint32_t>(1 + rng.below(8));
  }
  Range layers() const { return {0, geometry.layers}; }
  Range heads() const { return {0, geometry.heads()}; }

  KvGeometry geometry;
  std::uint64_t tokens;
  TestCache source, destination;
  std::vector<std::vector<std::uint64_t>> expected;
};

RC_GTEST_PROP(Convert, BeforeTheTransferTheSourceRepacksInTheDestinationsOrder, ()) {
  base::Rng rng(any_seed());
  Two two(rng);
  const kv::EngineCache source = two.source.view(), destination = two.destination.view();
  const KvSlice written = all_of(two.destination, two.tokens);
  const auto order = own_order(destination, written);
  RC_ASSERT(order.ok());
  OwnedBuffer packed(two.geometry, *order, two.tokens);
  RC_ASSERT(
      repack(source, all_of(two.source, two.tokens), packed.buffer.cache(), packed.buffer.slice())
          .ok());
  const ByteStream sent = stream_of(packed.buffer.cache(), packed.buffer.slice(), *order);
  copy_between(sent, stream_of(destination, written, *order), 0, sent.bytes());
  const bool same = two.destination.memory() == two.expected;
  RC_ASSERT(same);
}

RC_GTEST_PROP(Convert, AfterTheTransferTheDestinationRepacksFromTheSourcesOrder, ()) {
  base::Rng rng(any_seed());
  Two two(rng);
  const kv::EngineCache source = two.source.view(), destination = two.destination.view();
  const KvSlice read = all_of(two.source, two.tokens);
  const auto order = own_order(source, read);
  RC_ASSERT(order.ok());
  OwnedBuffer received(two.geometry, *order, two.tokens);
  const ByteStream sent = stream_of(source, read, *order);
  copy_between(sent, stream_of(received.buffer.cache(), received.buffer.slice(), *order), 0,
               sent.bytes());
  RC_ASSERT(repack(received.buffer.cache(), received.buffer.slice(), destination,
                   all_of(two.destination, two.tokens))
                .ok());
  const bool same = two.destination.memory() == two.expected;
  RC_ASSERT(same);
}

// One source rank with all heads; ranks that receive whole tokens, then take their heads from each other.
RC_GTEST_PROP(Convert, AnExchangeGivesEachRankItsHeads, ()) {
  base::Rng rng(any_seed());
  const Attention attention = rng.chance(0.2) ? Attention::kLatent : Attention::kGrouped;
  const KvGeometry model = any_model(attention, 1u << rng.below(4), 2, rng);
  const std::uint32_t ranks = 1u << rng.below(4);
  const std::uint64_t tokens = 1 + rng.below(40);
  TestInstance prefill(any_ranks(model, 1, 1, 1, rng), tokens, rng);
  TestInstance decode(any_ranks(model, ranks, 1, 1, rng), tokens, rng);
  prefill.fill(0, tokens);
  std::vector<std::vector<std::vector<std::uint64_t>>> expected;
  for (std::uint32_t rank = 0; rank < ranks; ++rank) {
    const auto before = decode.cache(rank).memory();
    decode.fill(rank, 0, tokens);
    expected.push_back(std::exchange(decode.cache(rank).memory(), before));
  }

  const kv::EngineCache source = prefill.cache(0).view();
  const std::uint32_t page_tokens = decode.cache(0).page_tokens();
  std::vector<std::unique_ptr<OwnedBuffer>> received(ranks);
  std::vector<const RequestBuffer*> shares(ranks);
  std::uint64_t sent_bytes = 0;
  for (std::uint32_t rank = 0; rank < ranks; ++rank) {
    const TokenShare share = share_of(tokens, page_tokens, ranks, rank);
    if (share.tokens == 0) continue;
    KvSlice read = all_of(prefill.cache(0), share.tokens);
    read.first_token = share.first;
    const auto order = own_order(source, read);
    RC_ASSERT(order.ok());
    received[rank] = std::make_unique<OwnedBuffer>(model, *order, share.tokens);
    shares[rank] = &received[rank]->buffer;
    const ByteStream sent = stream_of(source, read, *order);
    copy_between(sent, stream_of(shares[rank]->cache(), shares[rank]->slice(), *order), 0,
                 sent.bytes());
    sent_bytes += sent.bytes();
  }
  RC_ASSERT(sent_bytes == tokens * model.token_bytes());
  for (std::uint32_t rank = 0; rank < ranks; ++rank) {
    const KvSlice write = all_of(decode.cache(rank), tokens);
    RC_ASSERT(take_shares(shares, decode.box(rank).heads, decode.cache(rank).view(), write).ok());
    const bool same = decode.cache(rank).memory() == expected[rank];
    RC_ASSERT(same);
  }
}

RC_GTEST_PROP(Convert, SharesAreWholePagesAndAsEqualAsCanBe, ()) {
  base::Rng rng(any_seed());
  const std::uint64_t tokens = rng.below(200);
  const auto page_tokens = static_cast<std::uint32_t>(1 + rng.below(20));
  const auto ranks = static_cast<std::uint32_t>(1 + rng.below(9));
  std::uint64_t next = 0, most = 0, least = ~std::uint64_t{0};
  for (std::uint32_t rank = 0; rank < ranks; ++rank) {
    const TokenShare share = share_of(tokens, page_tokens, ranks, rank);
    RC_ASSERT(share.first == next);
    next += share.tokens;
    RC_ASSERT(next % page_tokens == 0 || next == tokens);
    const std::uint64_t pages = (share.tokens + page_tokens - 1) / page_tokens;
    most = std::max(most, pages);
    least = std::min(least, pages);
  }
  RC_ASSERT(next == tokens);
  RC_ASSERT(most - least <= 1);
}

TEST(Convert, ABufferInItsOwnOrderIsOneRun) {
  base::Rng rng(1);
  const KvGeometry grouped = any_model(Attention::kGrouped, 4, 3, rng);
  const KvGeometry latent = any_model(Attention::kLatent, 1, 3, rng);
  for (std::uint32_t i = 0; i < kLoopOrders; ++i) {
    const auto loops = static_cast<Loops>(i);
    const bool has_page = std::string(loop_letters(loops)).find('B') != std::string::npos;
    const StreamOrder order{loops, has_page ? 8u : 0u};
    for (const KvGeometry& geometry : {grouped, latent}) {
      if (geometry.heads() == 1 &&
          !(loops == Loops::kPartTokenHead || loops == Loops::kTokenHeadPart)) {
        continue;  // a latent has unlike parts, and one head
      }
      OwnedBuffer owned(geometry, order, 24);
      EXPECT_EQ(owned.memory.size(), 24 * geometry.token_bytes());
      const auto stream = kv_stream(owned.buffer.cache(), owned.buffer.slice(), order);
      ASSERT_TRUE(stream.ok()) << stream.error().message;
      ByteStreamCursor cursor(*stream);
      auto at = reinterpret_cast<std::uintptr_t>(owned.memory.data());
      for (Piece piece = cursor.next(~0u); piece.bytes > 0; piece = cursor.next(~0u)) {
        EXPECT_EQ(piece.at, at) << loop_letters(loops);
        at += piece.bytes;
      }
      EXPECT_EQ(at, reinterpret_cast<std::uintptr_t>(owned.memory.data()) + owned.memory.size());
    }
  }
}

TEST(Convert, WhatDoesNotFitIsRefused) {
  base::Rng rng(1);
  const KvGeometry model = any_model(Attention::kGrouped, 4, 3, rng);
  const auto message = [](const auto& result) {
    return result.ok() ? std::string() : std::string(result.error().message);
  };
  std::vector<std::byte> memory(*RequestBuffer::bytes(model, {}, 5) - 1);
  EXPECT_NE(message(RequestBuffer::make(model, {}, 5, memory)).find("bytes, expected"),
            std::string::npos);
  EXPECT_NE(message(RequestBuffer::bytes(model, {}, 0)).find("0 tokens"), std::string::npos);
  EXPECT_NE(message(RequestBuffer::bytes(model, {}, std::uint64_t{1} << 32)).find("4294967296"),
            std::string::npos);
  EXPECT_NE(message(RequestBuffer::bytes(model, {Loops::kPagePartHeadToken, 0}, 5)).find("BKHN"),
            std::string::npos);
  EXPECT_NE(message(RequestBuffer::bytes(model, {static_cast<Loops>(99), 0}, 5)).find("unknown"),
            std::string::npos);

  OwnedBuffer five(model, {}, 5), six(model, {}, 6);
  EXPECT_NE(message(repack(five.buffer.cache(), five.buffer.slice(), six.buffer.cache(),
                           six.buffer.slice()))
                .find("5 tokens of 3 layers into 6"),
            std::string::npos);
  EXPECT_NE(message(repack(five.buffer.cache(), five.buffer.slice({0, 2}), five.buffer.cache(),
                           five.buffer.slice()))
                .find("heads of the source 2"),
            std::string::npos);
  KvSlice fewer = five.buffer.slice();
  fewer.layers = {1, 3};
  EXPECT_NE(message(repack(five.buffer.cache(), fewer, five.buffer.cache(), five.buffer.slice()))
                .find("5 tokens of 2 layers into 5"),
            std::string::npos);
  const RequestBuffer* const shares[] = {nullptr};
  EXPECT_NE(message(take_shares(shares, {0, 4}, six.buffer.cache(), six.buffer.slice()))
                .find("no share of rank 0"),
            std::string::npos);
}

}  // namespace
}  // namespace cachalot::transfer
