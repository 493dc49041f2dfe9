#include "kv/engine_cache.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace cachalot::kv {
namespace {

using geometry::DType;

CacheShape small_shape() {
  CacheShape shape;
  shape.geometry.layers = 2;
  shape.geometry.kv_heads = 2;
  shape.geometry.head_dim = 8;
  shape.geometry.block_tokens = 8;
  shape.page_tokens = 4;
  shape.pages = 6;
  return shape;
}
constexpr std::uint64_t kTensorBytes =
    2 * 6 * 4 * 2 * 16;  // K and V, pages, tokens, heads, content

std::vector<Tensor> tensors_of(std::size_t count, std::uint64_t bytes) {
  static std::byte memory[1 << 16];
  std::vector<Tensor> out;
  for (std::size_t i = 0; i < count; ++i) out.push_back({memory + i * bytes, bytes});
  return out;
}

void expect_refused(const Result<EngineCache>& cache, const char* part,
                    Code code = Code::kInvalidArgument) {
  ASSERT_FALSE(cache) << part;
  EXPECT_EQ(cache.error().code, code);
  EXPECT_NE(std::string(cache.error().message).find(part), std::string::npos)
      << cache.error().message;
}

TEST(EngineCache, KnowsItsPagesAndBases) {
  const std::vector<Tensor> tensors = tensors_of(2, kTensorBytes);
  const Result<EngineCache> cache = EngineCache::make(small_shape(), "vllm_kbnhc", tensors);
  ASSERT_TRUE(cache) << cache.error().message;
  EXPECT_EQ(cache->pages_per_block(), 2u);
  EXPECT_EQ(cache->bases()[1], tensors[1].at);
}

TEST(EngineCache, APartOfTheHeadsIsACacheOfTheSamePages) {
  const std::vector<Tensor> tensors = tensors_of(2, kTensorBytes);
  const Result<EngineCache> cache = EngineCache::make(small_shape(), "vllm_kbnhc", tensors);
  ASSERT_TRUE(cache) << cache.error().message;
  const EngineCache second = cache->heads(1, 1);
  EXPECT_EQ(second.geometry().kv_heads, 1u);
  EXPECT_EQ(second.geometry().block_bytes(), cache->geometry().block_bytes() / 2);
  for (std::uint32_t k = 0; k < kParts; ++k) {
    EXPECT_EQ(second.strides().part[k].offset, cache->strides().part[k].offset + 16);
    EXPECT_EQ(second.strides().part[k].token, cache->strides().part[k].token);
  }
  EXPECT_EQ(second.bases()[1], tensors[1].at);
  EXPECT_EQ(cache->heads(0, 2).geometry(), cache->geometry());
}

TEST(EngineCache, APageIsABlockUnlessSaidOtherwise) {
  CacheShape shape = small_shape();
  shape.page_tokens = 0;
  shape.pages = 3;
  const Result<EngineCache> cache =
      EngineCache::make(shape, "vllm_kbnhc", tensors_of(2, kTensorBytes));
  ASSERT_TRUE(cache) << cache.error().message;
  EXPECT_EQ(cache->page_tokens(), 8u);
  EXPECT_EQ(cache->pages_per_block(), 1u);
}

TEST(EngineCache, WhatDoesNotFitTogetherIsRefused) {
  const CacheShape good = small_shape();
  expect_refused(EngineCache::make(good, "vllm_xyz", tensors_of(2, kTensorBytes)), "vllm_xyz");
  expect_refused(EngineCache::make(good, "vllm_kbnhc", tensors_of(1, kTensorBytes)),
                 "1 tensors, expected 2");
  expect_refused(EngineCache::make(good, "split_bnhc", tensors_of(2, kTensorBytes)),
                 "2 tensors, expected 4");
  expect_refused(EngineCache::make(good, "vllm_kbnhc", tensors_of(2, kTensorBytes - 2)),
                 "has 1534 bytes, expected 1536");
  expect_refused(EngineCache::make(good, "vllm_kbnhc", tensors_of(2, kTensorBytes + 2)),
                 "has 1538 bytes, expected 1536");
  expect_refused(EngineCache::make(good, "mla_joint", tensors_of(2, kTensorBytes)),
                 "not for grouped attention", Code::kUnsupported);
  CacheShape shape = good;
  shape.geometry.dtype = DType::kF32;  // the wrong dtype: tensors of another size
  expect_refused(EngineCache::make(shape, "vllm_kbnhc", tensors_of(2, kTensorBytes)),
                 "expected 3072");
  shape = good;
  shape.page_tokens = 3;
  expect_refused(EngineCache::make(shape, "vllm_kbnhc", tensors_of(2, kTensorBytes)),
                 "page_tokens is 3");
  shape = good;
  shape.pages = 0;
  expect_refused(EngineCache::make(shape, "vllm_kbnhc", tensors_of(2, kTensorBytes)), "pages is 0");
  shape = good;
  shape.page_stride_bytes = 100;
  expect_refused(EngineCache::make(shape, "vllm_kbnhc", tensors_of(2, kTensorBytes)),
                 "page_stride_bytes is 100, expected at least the 128");
  shape.geometry = {};
  expect_refused(EngineCache::make(shape, "vllm_kbnhc", tensors_of(2, kTensorBytes)),
                 "layers is 0");
}

TEST(EngineCache, ALatentIsNotReadFromALayoutOfKeysAndValues) {
  CacheShape shape = small_shape();
  shape.geometry.attention = Attention::kLatent;
  shape.geometry.kv_heads = shape.geometry.head_dim = 0;
  shape.geometry.kv_lora_rank = 12;
  shape.geometry.qk_rope_head_dim = 4;
  expect_refused(EngineCache::make(shape, "vllm_kbnhc", tensors_of(2, kTensorBytes)),
                 "not for latent attention", Code::kUnsupported);
}

TEST(EngineCache, MemoryThatIsNoneIsRefused) {
  std::vector<Tensor> tensors = tensors_of(2, kTensorBytes);
  tensors[1].at = nullptr;
  expect_refused(EngineCache::make(small_shape(), "vllm_kbnhc", tensors), "expected memory");
  tensors = tensors_of(2, kTensorBytes);
  tensors[1].at = tensors[0].at;
  expect_refused(EngineCache::make(small_shape(), "vllm_kbnhc", tensors),
                 "tensors 0 and 1 overlap");
  tensors = tensors_of(2, kTensorBytes);
  tensors[1].at += 1;
  expect_refused(EngineCache::make(small_shape(), "vllm_kbnhc", tensors), "a multiple of 2");
  tensors = tensors_of(2, kTensorBytes);
  tensors[0].bytes = ~std::uint64_t{0};
  expect_refused(EngineCache::make(small_shape(), "vllm_kbnhc", tensors), "expected memory");
}

TEST(EngineCache, TensorsThatOverlapAreRefusedByTheirNumbers) {
  CacheShape shape = small_shape();
  shape.geometry.layers = 3;
  std::vector<Tensor> tensors = tensors_of(3, kTensorBytes);
  ASSERT_TRUE(EngineCache::make(shape, "vllm_kbnhc", tensors));
  tensors[2].at -= 2;
  expect_refused(EngineCache::make(shape, "vllm_kbnhc", tensors), "tensors 1 and 2 overlap");
  std::swap(tensors[0], tensors[1]);
  expect_refused(EngineCache::make(shape, "vllm_kbnhc", tensors), "tensors 0 and 2 overlap");
  tensors[2] = {tensors[1].at + 512, kTensorBytes};  // inside of the first one
  expect_refused(EngineCache::make(shape, "vllm_kbnhc", tensors), "tensors 1 and 2 overlap");
}

TEST(EngineCache, PagesOfOneTensorMayLieInTheGapsOfAnothers) {
  CacheShape shape = small_shape();
  shape.geometry.layers = 3;
  shape.page_stride_bytes = 3 * 256;
  const std::uint64_t bytes = 5 * 768 + 256;  // six pages
  std::byte* const at = tensors_of(1, 0)[0].at;
  std::vector<Tensor> tensors = {{at, bytes}, {at + 512, bytes}, {at + 256, bytes}};
  ASSERT_TRUE(EngineCache::make(shape, "vllm_bknhc", tensors));
  tensors[2].at += 2;
  expect_refused(EngineCache::make(shape, "vllm_bknhc", tensors), "tensors 1 and 2 overlap");
  tensors[2].at = at + 768;  // a page later: the first one's second
  expect_refused(EngineCache::make(shape, "vllm_bknhc", tensors), "tensors 0 and 2 overlap");
  tensors[2].at = at + 767 - 255;  // the second one's last byte
  expect_refused(EngineCache::make(shape, "vllm_bknhc", tensors), "tensors 1 and 2 overlap");
}

TEST(EngineCache, SizesNear2To63AreRefusedAndNotWrapped) {
  CacheShape shape = small_shape();
  shape.geometry.kv_heads = 1u << 20;
  shape.geometry.head_dim = 1u << 20;
  shape.geometry.block_tokens = shape.page_tokens = 1u << 10;
  shape.geometry.layers = 1;
  ASSERT_TRUE(shape.geometry.check());  // a block of 2^52 bytes
  shape.pages = 1u << 11;               // 2^63 in all
  expect_refused(EngineCache::make(shape, "vllm_kbnhc", tensors_of(1, kTensorBytes)), "2^63");
  shape.pages = 0xffffffffu;
  expect_refused(EngineCache::make(shape, "sglang_layer_first", tensors_of(1, kTensorBytes)),
                 "2^63");
  shape = small_shape();
  shape.page_stride_bytes = std::uint64_t{1} << 62;
  expect_refused(EngineCache::make(shape, "vllm_kbnhc", tensors_of(2, kTensorBytes)), "2^63");
}

// --- strides of the caller's own

EngineStrides named_strides(const char* name) {
  const Result<const Layout*> layout = find_layout(name);
  return *strides_of((*layout)->grouped, small_shape(), name);
}

TEST(EngineCacheWithStrides, TakesWhatANamedLayoutWouldHaveAndMoreMemory) {
  const EngineStrides strides = named_strides("vllm_bknhc");
  EXPECT_TRUE(EngineCache::with_strides(small_shape(), strides, tensors_of(2, kTensorBytes)));
  EXPECT_TRUE(EngineCache::with_strides(small_shape(), strides, tensors_of(2, kTensorBytes + 64)));
}

TEST(EngineCacheWithStrides, RefusesStridesThatLeaveATensorOrMeet) {
  const std::vector<Tensor> tensors = tensors_of(2, kTensorBytes);
  const auto with = [&](auto change) {
    EngineStrides strides = named_strides("vllm_bknhc");
    change(strides);
    return EngineCache::with_strides(small_shape(), strides, tensors);
  };
  expect_refused(
      with([](EngineStrides& s) { s.part[1].offset += 2; }),
      "tensor 0 has 1536 bytes, expected at least 1538 for part 1: offset 130, page 5 x 256");
  expect_refused(with([](EngineStrides& s) {
                   s.part[0].page += 256;
                   s.part[1].page += 256;
                 }),
                 "bytes, expected at least");
  expect_refused(
      with([](EngineStrides& s) { s.part[0].token = 16; }),
      "token is 16, expected a stride that keeps apart (layer 0, page 0, head 0, token 1) "
      "and (layer 0, page 0, head 1, token 0)");
  expect_refused(with([](EngineStrides& s) { s.part[0].page = 96; }), "page is 96");
  expect_refused(with([](EngineStrides& s) { s.part[0].head = 0; }), "head is 0");
  expect_refused(with([](EngineStrides& s) { s.part[0].head = 15; }), "a multiple of 2");
  expect_refused(with([](EngineStrides& s) { s.part[1].offset = 0; }),
                 "part 1: offset is 0, expected one that keeps apart part 0 (layer 0, page 0");
  expect_refused(with([](EngineStrides& s) { s.part[1].offset = 64; }), "offset is 64");
  expect_refused(with([](EngineStrides& s) { s.part[1].tensor = 7; }), "tensor is 7");
  expect_refused(with([](EngineStrides& s) { s.part[0].layer = 1536; }), "layer is 1536");
  expect_refused(with([](EngineStrides& s) { s.part[1].layer_tensors = 2; }), "layer_tensors is 2");
  expect_refused(with([](EngineStrides& s) { s.part[0].page = std::uint64_t{1} << 62; }),
                 "part 0: page is 4611686018427387904, expected that page 5 ends within 2^63");
  expect_refused(with([](EngineStrides& s) { s.part[0].token = ~std::uint64_t{1}; }),
                 "token is 18446744073709551614, expected that token 3 ends within 2^63");
  expect_refused(with([](EngineStrides& s) { s.part[1].offset = ~std::uint64_t{1}; }),
                 "offset is 18446744073709551614");
  expect_refused(with([](EngineStrides& s) { s.tensors = 3; }), "2 tensors, expected 3");
}

TEST(EngineCacheWithStrides, RefusesATensorThatHoldsNothing) {
  EngineStrides strides = named_strides("vllm_bknhc");
  strides.tensors = 3;
  expect_refused(EngineCache::with_strides(small_shape(), strides, tensors_of(3, kTensorBytes)),
                 "tensor 2 holds no part of any layer");
}

// Elements of 16 bytes, tokens 32 apart and heads 48 apart: at 0, 32, 64, 96 and at 48, 80, 112, 144. Neither
// stride steps over all that is inside the other one, and still no two elements share a byte.
TEST(EngineCacheWithStrides, TakesElementsInGapsOfOthersIfNoneShareAByte) {
  CacheShape shape = small_shape();
  EngineStrides strides;
  strides.tensors = 1;
  for (PartStrides& part : strides.part)
    part = {.layer = 3072, .page = 256, .head = 48, .token = 32};
  strides.part[1].offset = 1536;
  const auto make = [&] {
    return EngineCache::with_strides(shape, strides, tensors_of(1, 4 * kTensorBytes));
  };
  EXPECT_TRUE(make()) << make().error().message;
  strides.part[0].head = 40;
  expect_refused(make(), "head is 40, expected a stride that keeps apart");
  strides.part[0].head = 96;  // token 0 of head 1 is token 3 of head 0
  expect_refused(make(), "head is 96");
  strides.part[0].head = 128;
  EXPECT_TRUE(make()) << make().error().message;
}

// Keys and values as two views of one packed buffer (page, token, head, 2 * head_dim).
TEST(EngineCacheWithStrides, TakesTwoViewsOfOneBuffer) {
  CacheShape shape = small_shape();
  shape.geometry.layers = 1;
  EngineStrides strides;
  strides.tensors = 2;
  for (std::uint32_t k = 0; k < kParts; ++k)
    strides.part[k] = {.tensor = k, .page = 256, .head = 32, .token = 64};
  std::byte* const at = tensors_of(1, 0)[0].at;
  std::vector<Tensor> tensors = {{at, kTensorBytes - 16}, {at + 16, kTensorBytes - 16}};
  EXPECT_TRUE(EngineCache::with_strides(shape, strides, tensors));
  tensors[1].at = at + 14;
  expect_refused(EngineCache::with_strides(shape, strides, tensors), "tensors 0 and 1 overlap");
}

}  // namespace
}  // namespace cachalot::kv
