#include "kv/plan.h"

#include <gtest/gtest.h>

#include <string>

#include "kv/walk.h"
#include "testing/kv/conformance.h"

namespace cachalot::kv {
namespace {

struct Made {
  Made(const KvGeometry& g, const char* layout, std::uint32_t page_tokens = 0,
       std::uint32_t pages = 40)
      : cache({g, page_tokens, pages, 0}, (*find_layout(layout))->form(g.attention), 1),
        view(*EngineCache::make(cache.shape, layout, cache.views())) {}

  CopyPlan plan(const char* order, LayerRange layers = {}, Grain grain = Grain::kPage) const {
    Result<CopyPlan> plan = CopyPlan::compile(view, **find_block_order(order), layers, grain);
    EXPECT_TRUE(plan) << plan.error().message;
    return *plan;
  }

  reference::Cache cache;
  EngineCache view;
};

KvGeometry preset(const char* name, std::uint32_t tokens) {
  return *geometry::from_preset(**geometry::find_preset(name), geometry::DType::kBf16, tokens);
}

std::uint64_t run_bytes(const CopyPlan& plan) {
  return plan.arithmetic().part[0].run_bytes;
}

TEST(CopyPlan, OfABlockOfQwen3Has128FragmentsOf32KiB) {
  const Made qwen(preset("Qwen3-32B", 16), "vllm_kbnhc", 0, 2);
  const CopyPlan plan = qwen.plan("layer_first");
  EXPECT_EQ(plan.fragments(), 128u);
  EXPECT_EQ(run_bytes(plan), 32u << 10);
  EXPECT_EQ(plan.block_bytes(), 4u << 20);
}

TEST(CopyPlan, WhatIsContiguousOnBothSidesIsOneFragment) {
  KvGeometry g = preset("Qwen3-32B", 16);
  g.layers = 4;
  // K and V of a page side by side.
  const Made side_by_side(g, "vllm_bknhc");
  EXPECT_EQ(side_by_side.plan("layer_first").fragments(), 4u);
  EXPECT_EQ(run_bytes(side_by_side.plan("layer_first")), 64u << 10);
  // All layers of a page: the whole block, where the pool has the engine's order.
  const Made cross_layer(g, "vllm_blnhc");
  EXPECT_EQ(cross_layer.plan("layer_first_packed").fragments(), 1u);
  EXPECT_EQ(cross_layer.plan("layer_first_packed", {1, 3}).fragments(), 1u);
  EXPECT_EQ(run_bytes(cross_layer.plan("layer_first_packed", {1, 3})), 128u << 10);
  // Heads apart on one side only: one head of one token at a time.
  const Made heads_apart(g, "vllm_kbhnc");
  EXPECT_EQ(run_bytes(heads_apart.plan("layer_first")), 256u);
  EXPECT_EQ(run_bytes(heads_apart.plan("layer_first_hnd")), 32u << 10);
}

TEST(CopyPlan, OfALatentCopiesLatentAndRopeTogetherWhereTheyLieTogether) {
  const KvGeometry g = preset("DeepSeek-V3", 128);
  const Made joint(g, "mla_joint", 0, 2);
  EXPECT_EQ(joint.plan("layer_first").fragments(), 61u);
  EXPECT_EQ(run_bytes(joint.plan("layer_first")), 144u << 10);
  const Made split(g, "mla_split", 0, 2);
  const CopyPlan apart = split.plan("layer_first_split");
  EXPECT_EQ(apart.fragments(), 122u);
  EXPECT_EQ(apart.arithmetic().part[0].run_bytes, 128u << 10);
  EXPECT_EQ(apart.arithmetic().part[1].run_bytes, 16u << 10);
}

TEST(CopyPlan, PagesOfABlockAreNeverMerged) {
  const KvGeometry g = preset("Llama-3-8B", 64);
  const Made rows(g, "llama_rows", 1, 64);
  EXPECT_EQ(rows.plan("layer_first").fragments(), 32u * 2 * 64);
  EXPECT_EQ(run_bytes(rows.plan("layer_first")), 2048u);
}

TEST(CopyPlan, LayersThatThereAreNotAreRefused) {
  const Made small(preset("Llama-3-8B", 16), "vllm_kbnhc", 0, 1);
  for (const LayerRange layers : {LayerRange{0, 33}, {32, 33}, {5, 5}, {6, 5}, {32, 0}}) {
    const Result<CopyPlan> plan = CopyPlan::compile(small.view, default_block_order(), layers);
    ASSERT_FALSE(plan) << layers.first << " " << layers.last;
    EXPECT_NE(std::string(plan.error().message).find("within 0 to 32"), std::string::npos);
  }
}

// The number of a fragment, taken apart, gives what nested loops give; fragments follow each other
// from front to back, and together they are all of the block.
TEST(CopyPlan, NumbersAndLoopsGiveTheSameFragments) {
  base::Rng rng(4);
  for (const Layout& layout : layouts()) {
    for (const Attention attention : {Attention::kGrouped, Attention::kLatent}) {
      if (layout.form(attention).order == nullptr) continue;
      KvGeometry g;
      g.layers = 3;
      g.attention = attention;
      g.kv_heads = g.head_dim = attention == Attention::kGrouped ? 3 : 0;
      g.kv_lora_rank = attention == Attention::kLatent ? 5 : 0;
      g.qk_rope_head_dim = attention == Attention::kLatent ? 2 : 0;
      g.block_tokens = 12;
      for (const BlockOrder& order : block_orders()) {
        for (const std::uint32_t page_tokens : {1u, 4u, 12u}) {
          const Made made(g, layout.name, page_tokens);
          for (const Grain grain : {Grain::kPage, Grain::kToken}) {
            const CopyPlan plan = made.plan(order.name, {}, grain);
            std::vector<TokenRange> ranges;
            std::vector<std::uint32_t> tokens;
            for (std::uint32_t t = 0; grain == Grain::kToken && t < 12; ++t) {
              if (rng.chance(0.5)) tokens.push_back(t);
            }
            for (const std::uint32_t t : tokens) ranges.push_back({t, t + 1});
            const auto chosen = static_cast<std::uint32_t>(tokens.size());
            std::uint32_t number = 0;
            std::uint64_t bytes = 0, end = 0;
            for_each_fragment(plan.arithmetic(), ranges, [&](const Fragment& walked) {
              // Loops join neighbouring tokens where they can.
              for (std::uint64_t joined = 0; joined < walked.bytes;) {
                const Fragment f = fragment(plan.arithmetic(), number++,
                                            chosen == 0 ? nullptr : tokens.data(), chosen);
                ASSERT_EQ(f.tensor, walked.tensor);
                ASSERT_EQ(f.page, walked.page);
                ASSERT_EQ(f.engine_offset, walked.engine_offset + joined);
                ASSERT_EQ(f.pool_offset, walked.pool_offset + joined);
                ASSERT_GE(f.pool_offset, end);
                end = f.pool_offset + f.bytes;
                joined += f.bytes;
                bytes += f.bytes;
              }
            });
            ASSERT_EQ(number, fragment_count(plan.arithmetic(), chosen));
            const std::uint64_t all = chosen == 0 ? 12 : chosen;
            ASSERT_EQ(bytes, all * g.token_bytes()) << layout.name << " " << order.name;
          }
        }
      }
    }
  }
}

}  // namespace
}  // namespace cachalot::kv
