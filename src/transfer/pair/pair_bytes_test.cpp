// Transfers between instances, simulated by copies: every destination byte against the model's, one by one.
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <algorithm>
#include <string>
#include <tuple>
#include <vector>

#include "testing/transfer/test_instance.h"
#include "transfer/pair/geometry_pair.h"
#include "transfer/pair/kv_stream.h"

namespace cachalot::transfer {
namespace {

struct Request {
  std::uint64_t first_token = 0, tokens = 1;
};

KvSlice slice_of(TestCache& cache, const Request& request, Range layers, Range heads) {
  return {cache.pages(), request.first_token, request.tokens, layers, heads};
}

// Whole, in pieces of any size, or layer by layer in any order of the layers.
void copy_stream(const ByteStream& from, const ByteStream& to, base::Rng& rng) {
  ASSERT_EQ(from.bytes(), to.bytes());
  ASSERT_EQ(from.turns(), to.turns());
  switch (rng.below(3)) {
    case 0:
      return copy_between(from, to, 0, from.bytes());
    case 1:
      for (std::uint64_t at = 0; at < from.bytes();) {
        const std::uint64_t bytes = std::min(from.bytes() - at, 1 + rng.below(500));
        copy_between(from, to, at, bytes);
        at += bytes;
      }
      return;
    default:
      const std::uint64_t start = rng.below(from.turns());
      for (std::uint64_t i = 0; i < from.turns(); ++i) {
        const std::uint64_t layer = (start + i) % from.turns();
        copy_between(from, to, layer * from.turn_bytes(), from.turn_bytes());
      }
  }
}

// What both engines do for a fetch. Each side uses its own cache, and the shape of the other.
void run_fetch(TestCache& from, TestCache& to, const Fetch& fetch, const Request& request,
               base::Rng& rng) {
  const kv::EngineCache source = from.view(), destination = to.view();
  const KvSlice read = slice_of(from, request, fetch.source_layers, fetch.source_heads);
  const KvSlice write = slice_of(to, request, fetch.destination_layers, fetch.destination_heads);
  const auto source_shape = stream_shape(source, read);
  const auto destination_shape = stream_shape(destination, write);
  ASSERT_TRUE(source_shape.ok() && destination_shape.ok());
  const auto order = choose_order(*source_shape, *destination_shape);
  ASSERT_TRUE(order.ok()) << order.error().message;
  const auto sent = kv_stream(source, read, *order);
  const auto received = kv_stream(destination, write, *order);
  ASSERT_TRUE(sent.ok()) << sent.error().message;
  ASSERT_TRUE(received.ok()) << received.error().message;
  EXPECT_EQ(sent->bytes(), fetch.token_bytes * request.tokens);
  copy_stream(*sent, *received, rng);
}

void transfer(TestInstance& prefill, TestInstance& decode, const PairOptions& options,
              const Request& request, base::Rng& rng) {
  const auto plan = plan_pair(prefill.ranks(), decode.ranks(), options);
  ASSERT_TRUE(plan.ok()) << plan.error().message;
  for (const Fetch& fetch : plan->fetches()) {
    run_fetch(prefill.cache(fetch.source), decode.cache(fetch.destination), fetch, request, rng);
  }
  for (const Fetch& copy : plan->copies()) {
    run_fetch(decode.cache(copy.source), decode.cache(copy.destination), copy, request, rng);
  }
}

void run_case(Attention attention, std::uint32_t prefill_tp, std::uint32_t decode_tp,
              std::uint32_t prefill_stages, std::uint32_t decode_stages, std::uint64_t seed) {
  base::Rng rng(seed);
  const KvGeometry model =
      any_model(attention, 1u << rng.below(4), static_cast<std::uint32_t>(2 + rng.below(3)), rng);
  const Request request{rng.chance(0.7) ? 0 : rng.below(20), 1 + rng.below(40)};
  const std::uint64_t end = request.first_token + request.tokens;
  TestInstance prefill(any_ranks(model, prefill_tp, prefill_stages, 1, rng), end, rng);
  TestInstance decode(any_ranks(model, decode_tp, decode_stages, 2, rng), end, rng);
  prefill.fill(request.first_token, request.tokens);

  // The reference: the model's bytes, written one by one into a copy of each cache; then the cache as it was.
  std::vector<std::vector<std::vector<std::uint64_t>>> expected;
  for (std::size_t rank = 0; rank < decode.size(); ++rank) {
    const auto before = decode.cache(rank).memory();
    decode.fill(rank, request.first_token, request.tokens);
    expected.push_back(std::exchange(decode.cache(rank).memory(), before));
  }
  transfer(prefill, decode, {rng.chance(0.5), rng.below(9)}, request, rng);
  for (std::size_t rank = 0; rank < decode.size(); ++rank) {
    EXPECT_TRUE(decode.cache(rank).memory() == expected[rank])
        << "rank " << rank << " in " << decode.cache(rank).layout().name << " from "
        << prefill.cache(0).layout().name << ", seed " << seed;
  }
}

class PairBytes
    : public testing::TestWithParam<std::tuple<Attention, std::uint32_t, std::uint32_t>> {};

TEST_P(PairBytes, AreThoseOfTheModel) {
  const auto [attention, prefill_tp, decode_tp] = GetParam();
  std::uint64_t seed = prefill_tp * 1000 + decode_tp * 100 + (attention == Attention::kLatent);
  for (std::uint32_t stages = 0; stages < 4; ++stages) {
    for (int i = 0; i < 25; ++i) {
      run_case(attention, prefill_tp, decode_tp, 1 + stages % 2, 1 + stages / 2, ++seed * 7919);
      if (HasFailure()) return;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(
    Ranks, PairBytes,
    testing::Combine(testing::Values(Attention::kGrouped, Attention::kLatent),
                     testing::Values(1u, 2u, 4u, 8u), testing::Values(1u, 2u, 4u, 8u)),
    [](const testing::TestParamInfo<PairBytes::ParamType>& of) {
      return std::string(std::get<0>(of.param) == Attention::kGrouped ? "Gqa" : "Mla") + "P" +
             std::to_string(std::get<1>(of.param)) + "D" + std::to_string(std::get<2>(of.param));
    });

RC_GTEST_PROP(PairBytesOfAnyCase, AreThoseOfTheModel, ()) {
  base::Rng rng(any_seed());
  run_case(rng.chance(0.3) ? Attention::kLatent : Attention::kGrouped, 1u << rng.below(4),
           1u << rng.below(4), 1u + rng.chance(0.5), 1u + rng.chance(0.5), rng.next());
  RC_ASSERT(!testing::Test::HasFailure());
}

}  // namespace
}  // namespace cachalot::transfer
