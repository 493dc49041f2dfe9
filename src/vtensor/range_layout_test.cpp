#include "vtensor/range_layout.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <limits>
#include <set>
#include <utility>

namespace cachalot::vtensor {
namespace {

constexpr std::uint64_t kMiB = std::uint64_t{1} << 20;
constexpr KvLayout kAll[] = {KvLayout::kPerLayer, KvLayout::kFolded, KvLayout::kFoldedParts};

KvShape grouped(std::uint64_t layers, std::uint64_t heads) {
  return {.layers = layers, .part_bytes = {heads * 128 * 2, heads * 128 * 2}};
}

RangeLayout make(const KvShape& shape, KvLayout layout, std::uint64_t chunk_bytes = 2 * kMiB,
                 std::uint64_t max_tokens = 1 << 17) {
  auto made = RangeLayout::make(shape, layout, chunk_bytes, max_tokens);
  EXPECT_TRUE(made) << made.error().message;
  return *std::move(made);
}

// vAttention's chunk economics: tokens in a chunk of a layer's part, and what the first token takes,
// with the layers apart and folded (keys and values apart in both).
TEST(RangeLayout, CountsTokensOfAChunkAndBytesOfTheFirstTokenOfRealModels) {
  const struct {
    const char* name;
    KvShape shape;
    std::uint64_t per_layer_tokens, per_layer_mib, folded_tokens, folded_mib;
  } kModels[] = {
      {"Yi-6B", grouped(32, 4), 2048, 128, 64, 4},
      {"Llama-3-8B", grouped(32, 8), 1024, 128, 32, 4},
      {"Llama-2-7B", grouped(32, 32), 256, 128, 8, 4},
      {"Yi-34B", grouped(60, 8), 1024, 240, 17, 4},
      {"Llama-3.1-70B, a rank of 8", grouped(80, 1), 8192, 320, 102, 4},
      {"DeepSeek-V3", {.layers = 61, .part_bytes = {1152}}, 1820, 122, 29, 2},
  };
  for (const auto& model : kModels) {
    SCOPED_TRACE(model.name);
    const RangeLayout apart = make(model.shape, KvLayout::kPerLayer);
    EXPECT_EQ(apart.tokens_in(0, 1), model.per_layer_tokens);
    EXPECT_EQ(apart.chunks(1) * 2, model.per_layer_mib);
    const RangeLayout folded = make(model.shape, KvLayout::kFoldedParts);
    EXPECT_EQ(folded.tokens_in(0, 1), model.folded_tokens);
    EXPECT_EQ(folded.chunks(1) * 2, model.folded_mib);
    EXPECT_EQ(make(model.shape, KvLayout::kFolded).chunks(1), 1u);
  }
}

TEST(RangeLayout, LetsATokenStraddleTwoChunks) {
  const RangeLayout yi = make(grouped(60, 8), KvLayout::kFoldedParts);  // 17.07 tokens a chunk
  EXPECT_EQ(yi.chunks(0, 17), 1u);
  EXPECT_EQ(yi.chunks(0, 18), 2u);
  EXPECT_EQ(yi.tokens_in(0, 2), 34u);
  EXPECT_EQ(yi.tokens_in(0, 15), 256u);  // one more than 15 * 17: the pieces add up
  EXPECT_EQ(yi.full_chunks(0, 256), 15u);
  EXPECT_EQ(yi.tail_bytes(0, 256), 0u);
  EXPECT_EQ(yi.without_tail(300), 256u);
  EXPECT_EQ(yi.without_tail(255), 0u);
}

// Which chunks hold a byte of the first `tokens`, byte by byte through view(): no formula in it.
struct Marks {
  std::set<std::uint64_t> touched;
  std::uint64_t bytes = 0;
};
Marks mark(const RangeLayout& range, std::uint64_t tokens) {
  std::set<std::uint64_t> all_bytes;
  Marks marks;
  for (std::uint64_t layer = 0; layer < range.shape().layers; ++layer) {
    for (std::uint64_t part = 0; part < range.shape().part_bytes.size(); ++part) {
      const RangeLayout::View view = range.view(layer, part);
      for (std::uint64_t token = 0; token < tokens; ++token) {
        for (std::uint64_t i = 0; i < range.shape().part_bytes[part]; ++i) {
          const std::uint64_t at = view.offset + token * view.stride + i;
          EXPECT_LT(at, range.range_bytes());
          EXPECT_TRUE(all_bytes.insert(at).second) << "two numbers share byte " << at;
          marks.touched.insert(at / range.chunk_bytes());
        }
      }
    }
  }
  marks.bytes = all_bytes.size();
  return marks;
}

RC_GTEST_PROP(RangeLayout, CountsWhatMarkingEveryByteCounts, ()) {
  const KvShape shape = {.layers = *rc::gen::inRange<std::uint64_t>(1, 5),
                         .part_bytes = *rc::gen::resize(
                             3, rc::gen::nonEmpty(rc::gen::container<std::vector<std::uint64_t>>(
                                    rc::gen::inRange<std::uint64_t>(1, 40))))};
  const auto layout = *rc::gen::elementOf(std::vector(std::begin(kAll), std::end(kAll)));
  const auto chunk_bytes = *rc::gen::inRange<std::uint64_t>(1, 200);
  const auto max_tokens = *rc::gen::inRange<std::uint64_t>(1, 40);
  const auto tokens = *rc::gen::inRange<std::uint64_t>(0, max_tokens + 1);
  const RangeLayout range = make(shape, layout, chunk_bytes, max_tokens);

  const Marks marks = mark(range, tokens);
  RC_ASSERT(range.chunks(tokens) == marks.touched.size());
  RC_ASSERT(range.kv_bytes(tokens) == marks.bytes);
  std::uint64_t chunks = 0, full = 0, tail = 0;
  for (std::uint64_t p = 0; p < range.planes(); ++p) {
    chunks += range.chunks(p, tokens);
    full += range.full_chunks(p, tokens);
    tail += range.tail_bytes(p, tokens);
    // So many chunks hold the tokens, and one less does not.
    const std::uint64_t need = range.chunks(p, tokens);
    RC_ASSERT(range.tokens_in(p, need) >= tokens);
    RC_ASSERT(need == 0 || range.tokens_in(p, need - 1) < tokens);
  }
  RC_ASSERT(chunks == range.chunks(tokens));
  RC_ASSERT(full == range.full_chunks(tokens));
  RC_ASSERT(full * chunk_bytes + tail == range.kv_bytes(tokens));
}

RC_GTEST_PROP(RangeLayout, FindsTheMostTokensWithoutATail, ()) {
  const KvShape shape = {.layers = *rc::gen::inRange<std::uint64_t>(1, 4),
                         .part_bytes = {*rc::gen::inRange<std::uint64_t>(1, 30),
                                        *rc::gen::inRange<std::uint64_t>(1, 30)}};
  const auto layout = *rc::gen::elementOf(std::vector(std::begin(kAll), std::end(kAll)));
  const RangeLayout range = make(shape, layout, *rc::gen::inRange<std::uint64_t>(1, 100), 500);
  const auto tokens = *rc::gen::inRange<std::uint64_t>(0, 501);
  std::uint64_t most = tokens;
  const auto has_tail = [&](std::uint64_t n) {
    for (std::uint64_t p = 0; p < range.planes(); ++p) {
      if (range.tail_bytes(p, n) != 0) return true;
    }
    return false;
  };
  while (has_tail(most)) --most;
  RC_ASSERT(range.without_tail(tokens) == most);
}

TEST(RangeLayout, RefusesWhatDoesNotFit) {
  constexpr std::uint64_t kMost = std::numeric_limits<std::uint64_t>::max();
  const auto code = [](const KvShape& shape, std::uint64_t chunk_bytes, std::uint64_t tokens) {
    for (const KvLayout layout : kAll) {
      const auto made = RangeLayout::make(shape, layout, chunk_bytes, tokens);
      EXPECT_FALSE(made) << kv_layout_name(layout);
      EXPECT_TRUE(made || made.error().code == Code::kInvalidArgument);
    }
  };
  code({.layers = 0, .part_bytes = {1}}, 1, 1);
  code({.layers = 1, .part_bytes = {}}, 1, 1);
  code({.layers = 1, .part_bytes = {1, 0}}, 1, 1);
  code({.layers = 2, .part_bytes = {kMost / 2 + 1}}, 1, 1);
  code({.layers = 1, .part_bytes = {kMost, 2}}, 1, 1);
  code({.layers = 1, .part_bytes = {1}}, 0, 1);
  code({.layers = 1, .part_bytes = {1}}, 1, 0);
  code({.layers = 1, .part_bytes = {2}}, 1, kMost);
  code({.layers = 1, .part_bytes = {2}}, kMost, 1);
  code({.layers = 128, .part_bytes = {1 << 20}}, 1 << 21, std::uint64_t{1} << 40);
}

TEST(KvLayout, HasNames) {
  for (const KvLayout layout : kAll) EXPECT_EQ(*parse_kv_layout(kv_layout_name(layout)), layout);
  EXPECT_FALSE(parse_kv_layout("per-layer"));
}

}  // namespace
}  // namespace cachalot::vtensor
