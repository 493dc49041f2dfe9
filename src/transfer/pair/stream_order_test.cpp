#include "transfer/pair/stream_order.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "testing/transfer/test_cache.h"

namespace cachalot::transfer {
namespace {

// A request of whole pages, none beside its predecessor.
struct Side {
  Side(const KvGeometry& geometry, std::uint32_t page_tokens, std::uint64_t tokens, base::Rng& rng)
      : cache(geometry, any_layout(geometry, rng), page_tokens, tokens * 3, rng),
        view(cache.view()) {
    for (std::uint64_t i = 0; i < tokens / page_tokens; ++i) {
      pages.push_back(static_cast<std::uint32_t>(2 * (tokens / page_tokens - 1 - i)));
    }
    first_head = static_cast<std::uint32_t>(rng.below(geometry.heads()));
  }
  KvSlice slice(std::uint64_t tokens, std::uint32_t heads) const {
    return {pages, 0, tokens, {0, 1}, {first_head, first_head + heads}};
  }
  std::uint64_t pieces(std::uint64_t tokens, std::uint32_t heads, const StreamOrder& order) const {
    const auto stream = kv_stream(view, slice(tokens, heads), order);
    RC_ASSERT(stream.ok());
    ByteStreamCursor cursor(*stream);
    std::uint64_t pieces = 0, last_end = 0;
    for (Piece piece = cursor.next(~0u); piece.bytes > 0; piece = cursor.next(~0u)) {
      // Sections may follow one another without a gap.
      if (piece.at != last_end) ++pieces;
      last_end = piece.at + piece.bytes;
    }
    return pieces;
  }

  TestCache cache;
  kv::EngineCache view;
  std::vector<std::uint32_t> pages;
  std::uint32_t first_head;
};

RC_GTEST_PROP(StreamOrder, NoOtherOrderHasFewerRunsOnBothSidesTogether, ()) {
  base::Rng rng(any_seed());
  const Attention attention = rng.chance(0.3) ? Attention::kLatent : Attention::kGrouped;
  const KvGeometry model =
      any_model(attention, static_cast<std::uint32_t>(1 + rng.below(5)), 1, rng);
  const std::uint32_t sizes[] = {1, 2, 3, 4, 6, 12};
  KvGeometry mine = model, theirs = model;
  if (attention == Attention::kGrouped) {
    mine.kv_heads = static_cast<std::uint32_t>(1 + rng.below(5));
    theirs.kv_heads = static_cast<std::uint32_t>(1 + rng.below(5));
  }
  const Side source(mine, sizes[rng.below(6)], 24, rng),
      destination(theirs, sizes[rng.below(6)], 24, rng);
  const std::uint32_t most =
      std::min(mine.heads() - source.first_head, theirs.heads() - destination.first_head);
  const auto heads = static_cast<std::uint32_t>(1 + rng.below(most));

  const auto a = stream_shape(source.view, source.slice(24, heads));
  const auto b = stream_shape(destination.view, destination.slice(24, heads));
  RC_ASSERT(a.ok() && b.ok());
  const auto order = choose_order(*a, *b), back = choose_order(*b, *a);
  RC_ASSERT(order.ok() && back.ok());
  RC_ASSERT(*order == *back);
  RC_ASSERT(is_possible(*a, *order) && is_possible(*b, *order));
  const auto pieces = [&](const StreamOrder& with) {
    return source.pieces(24, heads, with) + destination.pieces(24, heads, with);
  };
  const std::uint64_t chosen = pieces(*order);
  RC_LOG() << source.cache.layout().name << " to " << destination.cache.layout().name << ": "
           << loop_letters(order->loops) << " " << order->page_tokens << ", " << chosen
           << std::endl;
  for (std::uint32_t i = 0; i < kLoopOrders; ++i) {
    for (std::uint32_t unit = 0; unit <= 12; ++unit) {
      const StreamOrder other{static_cast<Loops>(i), unit};
      for (const auto& [side, shape] : {std::pair(&source, *a), std::pair(&destination, *b)}) {
        if (!is_possible(shape, other)) continue;
        const std::uint64_t pages = side->pages.size();
        // Fewer where a loop's last step happens to lie before the next loop's first.
        RC_ASSERT(side->pieces(24, heads, other) <= runs_of(shape, other) * pages);
      }
      if (is_possible(*a, other) && is_possible(*b, other)) RC_ASSERT(chosen <= pieces(other));
    }
  }
}

StreamShape shape_of(const char* layout, std::uint32_t heads, std::uint32_t page_tokens,
                     std::uint32_t first, std::uint32_t last) {
  base::Rng rng(3);
  KvGeometry g = any_model(Attention::kGrouped, heads, 2, rng);
  g.dtype = DType::kBf16;
  g.head_dim = 128;
  TestCache cache(g, **kv::find_layout(layout), page_tokens, page_tokens, rng);
  const auto shape =
      stream_shape(cache.view(), {cache.pages(), 0, page_tokens, {0, 1}, {first, last}});
  EXPECT_TRUE(shape.ok());
  return *shape;
}

// "LOOPS page_tokens", and runs of a source page and of a destination page.
std::string chosen(const StreamShape& source, const StreamShape& destination) {
  const auto order = choose_order(source, destination);
  if (!order) return order.error().message;
  return std::string(loop_letters(order->loops)) + " " + std::to_string(order->page_tokens) + ": " +
         std::to_string(runs_of(source, *order)) + " " +
         std::to_string(runs_of(destination, *order));
}

TEST(StreamOrder, EqualLayoutsMoveWholePages) {
  const auto equal = [](const char* layout) {
    return chosen(shape_of(layout, 4, 16, 0, 4), shape_of(layout, 4, 16, 0, 4));
  };
  EXPECT_EQ(equal("vllm_kbnhc"), "KNH 0: 2 2");
  EXPECT_EQ(equal("vllm_kbhnc"), "KBHN 16: 2 2");
  EXPECT_EQ(equal("vllm_bknhc"), "BKNH 16: 1 1");
  EXPECT_EQ(equal("vllm_bkhnc"), "BKHN 16: 1 1");
  EXPECT_EQ(equal("vllm_bnhkc"), "NHK 0: 1 1");
  EXPECT_EQ(equal("vllm_bhnkc"), "BHNK 16: 1 1");
  EXPECT_EQ(equal("llama_rows"), "KNH 0: 2 2");
}

TEST(StreamOrder, HeadsThatSplitKeepTheLongestRunsThatBothHave) {
  // NHD: a token's heads. HND: a head's tokens.
  EXPECT_EQ(chosen(shape_of("vllm_kbnhc", 8, 16, 0, 4), shape_of("vllm_kbnhc", 4, 16, 0, 4)),
            "KNH 0: 32 2");
  EXPECT_EQ(chosen(shape_of("vllm_kbhnc", 8, 16, 4, 8), shape_of("vllm_kbhnc", 4, 16, 0, 4)),
            "KBHN 16: 2 2");
  EXPECT_EQ(chosen(shape_of("vllm_bkhnc", 8, 16, 4, 8), shape_of("vllm_kbhnc", 4, 16, 0, 4)),
            "KBHN 16: 2 2");
}

TEST(StreamOrder, PagesOfUnlikeSizesMeetInTheirCommonUnit) {
  EXPECT_EQ(chosen(shape_of("vllm_kbhnc", 4, 32, 0, 4), shape_of("vllm_kbhnc", 4, 16, 0, 4)),
            "KBHN 16: 16 2");
  EXPECT_EQ(chosen(shape_of("vllm_bkhnc", 1, 32, 0, 1), shape_of("vllm_kbhnc", 1, 16, 0, 1)),
            "KNH 0: 2 2");
}

TEST(StreamOrder, UnitsOfAPageThatLieTogetherAreOneRun) {
  const StreamShape shape = shape_of("vllm_kbhnc", 4, 16, 2, 3);
  EXPECT_EQ(runs_of(shape, {Loops::kPartPageHeadToken, 4}), 2u);
  EXPECT_EQ(runs_of(shape_of("vllm_kbhnc", 4, 16, 2, 4), {Loops::kPartPageHeadToken, 4}), 16u);
}

TEST(StreamOrder, UnlikeShapesAreRefusedWithBothValues) {
  const StreamShape four = shape_of("vllm_kbnhc", 4, 16, 0, 4);
  StreamShape other = four;
  EXPECT_NE(chosen(four, shape_of("vllm_kbnhc", 4, 16, 0, 3))
                .find("heads of the source 4, of the destination 3"),
            std::string::npos);
  other.part[1].content_bytes = 7;
  EXPECT_NE(chosen(four, other).find("256, of the destination 7"), std::string::npos);
}

RC_GTEST_PROP(StreamOrder, AnyWordsOfAPeerGiveAnOrderOrOneError, ()) {
  const auto any_word = [] {
    const std::uint64_t wild = *rc::gen::arbitrary<std::uint64_t>();
    return *rc::gen::element<std::uint64_t>(0, 1, 2, 4, 8, 16, 1u << 31, std::uint64_t{1} << 62,
                                            std::uint64_t{1} << 63, ~std::uint64_t{0}, wild);
  };
  const auto any_shape = [&] {
    StreamShape shape;
    shape.heads = any_word();
    shape.page_tokens = any_word();
    for (StreamShape::Part& part : shape.part) part = {any_word(), any_word(), any_word()};
    shape.part_step = static_cast<std::int64_t>(any_word());
    return shape;
  };
  const StreamShape a = any_shape();
  StreamShape b = any_shape();
  if (*rc::gen::inRange(0, 4) > 0) {
    b.heads = a.heads;
    b.part[0].content_bytes = a.part[0].content_bytes;
    b.part[1].content_bytes = a.part[1].content_bytes;
  }
  const auto order = choose_order(a, b);
  if (order.ok()) {
    RC_ASSERT(is_possible(a, *order) && is_possible(b, *order));
  } else {
    RC_ASSERT(order.error().message[0] != 0);
  }
}

}  // namespace
}  // namespace cachalot::transfer
