// Compares caches with given strides with caches of named layouts.
#include <gtest/gtest.h>

#include <functional>

#include "testing/client/test_cluster.h"

namespace cachalot::client {
namespace {

constexpr std::uint32_t kPages = 16;
constexpr std::uint64_t kContent = 64;  // bytes of one head of one token of small_geometry()

// One buffer for all layers: (page, head, layer, token, [V, K, 64 bytes of other data]), and 128 bytes after the
// layers of a head. No order of dimensions has such gaps.
constexpr std::uint64_t kToken = 3 * kContent;
constexpr std::uint64_t kLayer = 4 * kToken;
constexpr std::uint64_t kHead = 3 * kLayer + 128;
constexpr std::uint64_t kPage = 2 * kHead;

PagedCache describe(std::vector<std::byte>& buffer) {
  PagedCache cache;
  cache.tensors = {{buffer.data(), buffer.size()}};
  cache.pages = kPages;
  const PartStrides values = {.layer = kLayer, .page = kPage, .head = kHead, .token = kToken};
  PartStrides keys = values;
  keys.offset = kContent;
  cache.strides = {keys, values};
  return cache;
}

struct Strided {
  explicit Strided(const ClientOptions& options)
      : buffer(kPages * kPage, std::byte{0x5a}), client(Engine::attach(options)) {
    const Result<CacheId> registered = client.register_cache(describe(buffer));
    EXPECT_TRUE(registered) << (registered ? "" : registered.error().message);
    if (registered) cache = *registered;
  }
  std::vector<std::byte> buffer;
  Client client;
  CacheId cache{};
};

// Calls f(place in the strided buffer, layer, place in the layer's tensor of vllm_bknhc) for each element.
void for_each_element(PageId strided, PageId named,
                      const std::function<void(std::uint64_t, std::uint32_t, std::uint64_t)>& f) {
  for (std::uint32_t part = 0; part < 2; ++part) {
    for (std::uint32_t layer = 0; layer < 3; ++layer) {
      for (std::uint32_t token = 0; token < 4; ++token) {
        for (std::uint32_t head = 0; head < 2; ++head) {
          f(strided * kPage + head * kHead + layer * kLayer + token * kToken +
                (part == 0 ? kContent : 0),
            layer, (((named * 2 + part) * 4 + token) * 2 + head) * kContent);
        }
      }
    }
  }
}

TEST(StridedCache, HoldsWhatANamedLayoutStoredAndBack) {
  Cluster cluster;
  Engine named(cluster.client_options());
  Strided strided(cluster.client_options());
  const std::vector<PageId> from = {4, 1, 9}, to = {7, 0, 15}, back = {2, 3, 11};
  const std::vector<BlockHash> hashes = named.client.hash_tokens(tokens_of(1, 12));
  for (std::size_t i = 0; i < 3; ++i) named.compute(hashes[i], from[i]);
  ASSERT_EQ(named.client.store(named.cache, nullptr, hashes, from)->written, 3u);
  ASSERT_EQ(*strided.client.load(strided.cache, hashes, to), 3u);
  std::vector<std::byte> wanted(strided.buffer.size(), std::byte{0x5a});
  for (std::size_t i = 0; i < 3; ++i) {
    for_each_element(to[i], from[i], [&](auto at, std::uint32_t layer, auto in_tensor) {
      std::copy_n(named.memory[layer].begin() + static_cast<std::ptrdiff_t>(in_tensor), kContent,
                  wanted.begin() + static_cast<std::ptrdiff_t>(at));
    });
  }
  EXPECT_TRUE(strided.buffer == wanted);  // the gaps are unchanged

  // The same bytes under other hashes: stored from the strided pages, loaded into the named layout.
  const std::vector<BlockHash> others = named.client.hash_tokens(tokens_of(2, 12));
  ASSERT_EQ(strided.client.store(strided.cache, nullptr, others, to)->written, 3u);
  named.clear();
  ASSERT_EQ(*named.client.load(named.cache, others, back), 3u);
  for (std::size_t i = 0; i < 3; ++i) EXPECT_TRUE(named.holds(hashes[i], back[i])) << i;
}

TEST(StridedCache, IsLoadedAndStoredLayerByLayer) {
  Cluster cluster;
  Engine named(cluster.client_options());
  Strided strided(cluster.client_options());
  const std::vector<PageId> pages = {3, 8};
  const std::vector<BlockHash> hashes = named.client.hash_tokens(tokens_of(1, 8));
  for (std::size_t i = 0; i < 2; ++i) named.compute(hashes[i], pages[i]);
  ASSERT_EQ(named.client.store(named.cache, nullptr, hashes, pages)->written, 2u);
  Result<Client::LayerLoad> load = strided.client.begin_load(strided.cache, hashes, pages);
  ASSERT_TRUE(load) << load.error().message;
  for (std::uint32_t layer = 0; layer < 3; ++layer) EXPECT_EQ(*load->load_layer(layer), 2u);

  const std::vector<BlockHash> others = named.client.hash_tokens(tokens_of(2, 8));
  Result<Client::LayerStore> store =
      strided.client.begin_store(strided.cache, nullptr, others, pages);
  ASSERT_TRUE(store) << store.error().message;
  for (std::uint32_t layer = 0; layer < 3; ++layer) EXPECT_TRUE(store->store_layer(layer));
  ASSERT_EQ(store->finish()->written, 2u);
  named.clear();
  ASSERT_EQ(*named.client.load(named.cache, others, pages), 2u);
  for (std::size_t i = 0; i < 2; ++i) EXPECT_TRUE(named.holds(hashes[i], pages[i])) << i;
}

TEST(StridedCache, IsRefusedWithTheFieldAndItsValue) {
  Cluster cluster;
  Client client = Engine::attach(cluster.client_options());
  std::vector<std::byte> buffer(kPages * kPage);
  const auto refused = [&](const std::function<void(PagedCache&)>& change, const char* words) {
    PagedCache cache = describe(buffer);
    change(cache);
    const Result<CacheId> registered = client.register_cache(cache);
    ASSERT_FALSE(registered) << words;
    EXPECT_EQ(registered.error().code, Code::kInvalidArgument);
    EXPECT_NE(std::string(registered.error().message).find(words), std::string::npos)
        << registered.error().message;
  };
  using C = PagedCache;
  refused([](C& c) { (*c.strides)[0].token = 60; }, "part 0: token is 60, expected a stride that");
  refused([](C& c) { (*c.strides)[1].head = kLayer * 2; }, "part 1: head is 1536");
  refused([](C& c) { (*c.strides)[0].page = 1; }, "part 0: page is 1, expected a stride that is a");
  refused([](C& c) { (*c.strides)[0].offset = 0; }, "offset is 0, expected one that keeps apart");
  refused([](C& c) { (*c.strides)[0].page += 64; }, "tensor 0 has 77824 bytes, expected at least");
  refused([](C& c) { (*c.strides)[1].layer = ~std::uint64_t{1}; }, "ends within 2^63");
  refused([](C& c) { (*c.strides)[1].tensor = 1; }, "part 1: tensor is 1, expected a number below");
  refused([](C& c) { c.tensors[0].bytes = 64; }, "tensor 0 has 64 bytes");
  refused([](C& c) { c.layout = "vllm_bknhc"; }, "layout is vllm_bknhc and strides are given");
  refused([](C& c) { c.page_stride_bytes = kPage; }, "page_stride_bytes is 4864 and strides are");
  refused([](C& c) { c.strides.reset(); }, "neither a layout nor strides");
}

}  // namespace
}  // namespace cachalot::client
