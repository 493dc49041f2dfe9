#include "kv/page_copy.h"

#include <gtest/gtest.h>

#include <cstring>
#include <vector>

namespace cachalot::kv {
namespace {

// An engine's cache with its memory. Each element is found by its address, computed here without strides.
struct TestCache {
  TestCache(const KvGeometry& geometry, const char* layout, std::uint32_t page_tokens,
            std::uint32_t blocks)
      : shape{geometry, page_tokens, blocks * (geometry.block_tokens / page_tokens)} {
    const std::uint64_t bytes = blocks * geometry.block_bytes();
    // One tensor a layer, or one in all: both fit the same memory.
    for (const std::uint32_t tensors : {geometry.layers, 1u, 2u * geometry.layers, 2u}) {
      memory.assign(tensors, std::vector<std::byte>(bytes / tensors));
      std::vector<Tensor> given;
      for (auto& tensor : memory) given.push_back({tensor.data(), tensor.size()});
      Result<EngineCache> made = EngineCache::make(shape, layout, given);
      if (!made) continue;
      cache = std::make_unique<EngineCache>(*std::move(made));
      return;
    }
    ADD_FAILURE() << "no tensors fit " << layout;
  }
  std::byte* at(std::uint32_t part, std::uint32_t layer, std::uint32_t block, std::uint32_t head,
                std::uint32_t token) const {
    const PartStrides& s = cache->strides().part[part];
    const std::uint64_t page =
        std::uint64_t{block} * cache->pages_per_block() + token / cache->page_tokens();
    return cache->bases()[s.tensor + layer * s.layer_tensors] + s.offset + layer * s.layer +
           page * s.page + head * s.head + token % cache->page_tokens() * s.token;
  }
  CacheShape shape;
  std::vector<std::vector<std::byte>> memory;
  std::unique_ptr<EngineCache> cache;
};

// A value for each element, which says where it belongs.
std::uint8_t value(std::uint32_t part, std::uint32_t layer, std::uint32_t block, std::uint32_t head,
                   std::uint32_t token, std::uint64_t byte) {
  return static_cast<std::uint8_t>(
      1 + (part * 3 + layer * 7 + block * 31 + head * 11 + token * 5 + byte) % 251);
}

template <class F>
void for_each_place(const KvGeometry& g, F&& f) {
  for (std::uint32_t part = 0; part < kParts; ++part)
    for (std::uint32_t layer = 0; layer < g.layers; ++layer)
      for (std::uint32_t head = 0; head < g.heads(); ++head)
        for (std::uint32_t token = 0; token < g.block_tokens; ++token) f(part, layer, head, token);
}

KvGeometry grouped() {
  KvGeometry geometry;
  geometry.layers = 3;
  geometry.kv_heads = 2;
  geometry.head_dim = 8;
  geometry.block_tokens = 12;
  return geometry;
}

void expect_copied(const TestCache& from, const TestCache& to, std::uint32_t first,
                   std::uint32_t last, std::span<const PagePair> pairs) {
  const KvGeometry& g = from.cache->geometry();
  for (const PagePair& pair : pairs) {
    for_each_place(
        g, [&](std::uint32_t part, std::uint32_t layer, std::uint32_t head, std::uint32_t token) {
          for (std::uint64_t byte = 0; byte < g.content_bytes(part); ++byte) {
            const auto found =
                static_cast<std::uint8_t>(to.at(part, layer, pair.to, head, token)[byte]);
            const bool is_copied = layer >= first && layer < last;
            ASSERT_EQ(found, is_copied ? value(part, layer, pair.from, head, token, byte) : 0);
          }
        });
  }
}

void fill(const TestCache& cache, std::uint32_t blocks) {
  const KvGeometry& g = cache.cache->geometry();
  for (std::uint32_t block = 0; block < blocks; ++block) {
    for_each_place(
        g, [&](std::uint32_t part, std::uint32_t layer, std::uint32_t head, std::uint32_t token) {
          for (std::uint64_t byte = 0; byte < g.content_bytes(part); ++byte)
            cache.at(part, layer, block, head, token)[byte] =
                static_cast<std::byte>(value(part, layer, block, head, token, byte));
        });
  }
}

TEST(PageCopy, EveryElementArrivesBetweenAnyTwoLayoutsAndPageSizes) {
  struct Kind {
    const char* layout;
    std::uint32_t page_tokens;
  };
  const Kind kinds[] = {
      {"vllm_bknhc", 12}, {"vllm_bknhc", 4}, {"vllm_kbnhc", 6}, {"vllm_bkhnc", 12}};
  const std::vector<PagePair> pairs = {{0, 3}, {4, 0}, {2, 2}};
  for (const Kind& one : kinds) {
    for (const Kind& other : kinds) {
      SCOPED_TRACE(std::string(one.layout) + " to " + other.layout);
      TestCache from(grouped(), one.layout, one.page_tokens, 5);
      TestCache to(grouped(), other.layout, other.page_tokens, 4);
      ASSERT_TRUE(from.cache && to.cache);
      fill(from, 5);
      const Result<PageCopy> copy = PageCopy::make(*from.cache, *to.cache);
      ASSERT_TRUE(copy) << copy.error().message;
      copy->copy(pairs, {1, 2});
      expect_copied(from, to, 1, 2, pairs);
      copy->copy(pairs);
      expect_copied(from, to, 0, 3, pairs);
    }
  }
}

TEST(PageCopy, OtherGeometriesAreRefused) {
  KvGeometry other = grouped();
  other.layers = 2;
  TestCache from(grouped(), "vllm_bknhc", 12, 2), to(other, "vllm_bknhc", 12, 2);
  const Result<PageCopy> copy = PageCopy::make(*from.cache, *to.cache);
  ASSERT_FALSE(copy);
  EXPECT_EQ(copy.error().code, Code::kInvalidArgument);
}

}  // namespace
}  // namespace cachalot::kv
