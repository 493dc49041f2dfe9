#include <cachalot/tensor_shape.h>

#include <gtest/gtest.h>

#include <map>
#include <string_view>

#include "kv/layout.h"
#include "kv/paged_cache.h"

namespace cachalot {
namespace {

KvGeometry grouped() {
  KvGeometry geometry;
  geometry.layers = 3;
  geometry.kv_heads = 2;
  geometry.head_dim = 32;
  geometry.block_tokens = 4;
  return geometry;
}

KvGeometry latent() {
  KvGeometry geometry;
  geometry.layers = 3;
  geometry.attention = Attention::kLatent;
  geometry.kv_lora_rank = 64;
  geometry.qk_rope_head_dim = 16;
  geometry.block_tokens = 4;
  return geometry;
}

TensorShape shape_of(const char* layout, const KvGeometry& geometry, std::size_t tensor = 0,
                     std::uint32_t page_tokens = 0) {
  const auto shapes = tensor_shapes(
      {.layout = layout, .pages = 16, .page_tokens = page_tokens, .strides = {}}, geometry);
  EXPECT_TRUE(shapes) << shapes.error().message;
  return shapes->at(tensor);
}

bool accepts(const TensorShape& tensor, std::vector<std::int64_t> shape) {
  return tensor.accepts(shape);
}

TEST(TensorShape, NamesWhatATensorHoldsAndItsAxes) {
  EXPECT_EQ(shape_of("vllm_kbnhc", grouped(), 2).text(),
            "(2, 16, 4, 2, 32): keys/values, pages, tokens, heads, head_dim");
  EXPECT_EQ(shape_of("vllm_kbnhc", grouped(), 2).holds, "layer 2");
  EXPECT_EQ(shape_of("split_bhnc", grouped(), 3).holds, "values of layer 1");
  EXPECT_EQ(shape_of("sglang_device", grouped(), 4).holds, "values of layer 1");
  EXPECT_EQ(shape_of("vllm_lbhnc", grouped()).text(),
            "(3, 16, 2, 4, 2, 32): layers, pages, heads, tokens, keys/values, head_dim");
  EXPECT_EQ(shape_of("vllm_lbhnc", grouped()).holds, "all layers");
  EXPECT_EQ(shape_of("mla_joint", latent(), 1).text(), "(16, 4, 80): pages, tokens, latent+rope");
  EXPECT_EQ(shape_of("mla_split", latent(), 1).text(), "(16, 4, 16): pages, tokens, rope");
  EXPECT_EQ(shape_of("sglang_kv_split", latent(), 1).holds, "rope parts of all layers");
}

TEST(TensorShape, RefusesAxesInAnotherOrder) {
  const TensorShape tensor = shape_of("vllm_kbnhc", grouped());
  EXPECT_TRUE(accepts(tensor, {2, 16, 4, 2, 32}));
  EXPECT_FALSE(accepts(tensor, {16, 2, 4, 2, 32})) << "pages first: vllm_bknhc";
  EXPECT_FALSE(accepts(tensor, {2, 16, 2, 4, 32})) << "heads before tokens: vllm_kbhnc";
  EXPECT_FALSE(accepts(tensor, {2, 16, 4, 32, 2}));
  EXPECT_FALSE(accepts(tensor, {2, 16, 2, 4, 2, 16})) << "other sizes of as many numbers";
  EXPECT_FALSE(accepts(tensor, {2, 15, 4, 2, 32}));
  EXPECT_FALSE(accepts(tensor, {2, 16, 4, 2, -32}));
  EXPECT_FALSE(accepts(tensor, {INT64_MAX, INT64_MAX, 32}));
  EXPECT_FALSE(accepts(shape_of("vllm_bnhkc", grouped()), {16, 4, 2, 32, 2}));
}

TEST(TensorShape, TakesNeighbouringAxesAsOne) {
  EXPECT_TRUE(accepts(shape_of("vllm_kbnhc", grouped()), {2, 64, 2, 32})) << "slots";
  EXPECT_TRUE(accepts(shape_of("llama_rows", grouped()), {64, 64})) << "cells and rows";
  EXPECT_TRUE(accepts(shape_of("vllm_bnhkc", grouped()), {16, 4, 2, 64})) << "packed";
  EXPECT_TRUE(accepts(shape_of("vllm_bnhkc", grouped()), {16, 4, 2, 2, 32}));
  EXPECT_TRUE(accepts(shape_of("vllm_kbnhc", grouped()), {1, 2, 16, 1, 4, 2, 32}));
  EXPECT_TRUE(accepts(shape_of("vllm_kbnhc", grouped(), 0, 1), {2, 16, 2, 32}));
  EXPECT_TRUE(accepts(shape_of("vllm_kbnhc", grouped()), {2 * 16 * 4 * 2 * 32})) << "no axes";
  EXPECT_FALSE(accepts(shape_of("vllm_kbnhc", grouped()), {2 * 16 * 4 * 2 * 31}));
}

// The letters of the table say what the strides do: an array of the shape has them.
TEST(TensorShape, HasTheStridesOfItsLayout) {
  for (const kv::Layout& layout : kv::layouts()) {
    for (const KvGeometry& geometry : {grouped(), latent()}) {
      if (layout.form(geometry.attention).order == nullptr) continue;
      const kv::CacheShape sizes{geometry, 2, 16, 0};
      const auto strides = kv::strides_of(layout.form(geometry.attention), sizes, layout.name);
      ASSERT_TRUE(strides);
      const TensorShape tensor = shape_of(layout.name, geometry, 0, 2);
      std::uint64_t step = 2;  // bytes of a number
      for (std::size_t i = tensor.axes.size(); i-- > 0; step *= tensor.axes[i].size) {
        const PartStrides& keys = strides->part[0];
        const std::map<std::string_view, std::uint64_t> steps = {
            {"layers", keys.layer},
            {"pages", keys.page},
            {"heads", keys.head},
            {"tokens", keys.token},
            {"keys/values", strides->part[1].offset}};
        const auto expected = steps.find(tensor.axes[i].name);
        if (expected == steps.end()) continue;  // contents of a head
        EXPECT_EQ(expected->second, step) << layout.name << ": " << expected->first;
      }
    }
  }
}

TEST(TensorShape, IsUnknownWhereStridesOrGapsAre) {
  PagedCache cache{.layout = "vllm_bknhc", .pages = 16};
  cache.page_stride_bytes = 2 * 4 * 2 * 32 * 2;
  EXPECT_EQ(tensor_shapes(cache, grouped())->size(), 3u) << "as dense as without";
  cache.page_stride_bytes += 64;
  EXPECT_TRUE(tensor_shapes(cache, grouped())->empty());
  cache = {.layout = "", .pages = 16, .strides = {{}}};
  EXPECT_TRUE(tensor_shapes(cache, grouped())->empty());
}

TEST(TensorShape, RefusesWhatTheRegistrationRefuses) {
  const auto refused = [](const PagedCache& cache, const char* words) {
    const auto shapes = tensor_shapes(cache, grouped());
    ASSERT_FALSE(shapes);
    EXPECT_NE(std::string(shapes.error().message).find(words), std::string::npos)
        << shapes.error().message;
  };
  refused({.layout = "nonsense", .pages = 16}, "layout: nonsense is none of");
  refused({.layout = "mla_joint", .pages = 16}, "mla_joint is not for grouped");
  refused({.layout = "vllm_kbnhc", .pages = 0}, "pages is 0");
  refused({.layout = "vllm_kbnhc", .pages = 16, .page_tokens = 3}, "page_tokens is 3");
}

TEST(LayoutLegend, HasALineForEachLayout) {
  const std::string legend = layout_legend();
  for (const kv::Layout& layout : kv::layouts()) {
    const bool is_there = legend.find("\n" + std::string(layout.name) + " ") != std::string::npos;
    EXPECT_EQ(is_there, layout.refusal == nullptr) << layout.name;
  }
  EXPECT_NE(legend.find("[K, B, N, H, C], a tensor per layer\n"), std::string::npos) << legend;
  EXPECT_NE(legend.find("[L, B, H, N, KC], one tensor; latents: [L, B, N, KC], one tensor\n"),
            std::string::npos);
}

}  // namespace
}  // namespace cachalot
