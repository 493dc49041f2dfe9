#include <gtest/gtest.h>

#include <fstream>
#include <iterator>
#include <numeric>

#include "testing/client/test_cluster.h"

namespace cachalot::client {
namespace {

class LayerwiseTest : public ::testing::TestWithParam<const char*> {
 protected:
  LayerwiseTest() : cluster_(small_geometry().block_bytes(), 64, GetParam()) {}
  static std::vector<PageId> pages(std::size_t count) {
    std::vector<PageId> all(count);
    std::iota(all.begin(), all.end(), PageId{0});
    return all;
  }
  std::vector<BlockHash> computed(Engine& engine, std::uint64_t prompt, std::size_t blocks) {
    const auto hashes = engine.client.hash_tokens(tokens_of(prompt, blocks * 4));
    for (std::size_t i = 0; i < blocks; ++i) engine.compute(hashes[i], static_cast<PageId>(i));
    return hashes;
  }
  Client::LayerStore begin_store(Engine& engine, std::span<const BlockHash> hashes) {
    Result<Client::LayerStore> store =
        engine.client.begin_store(engine.cache, nullptr, hashes, pages(hashes.size()));
    EXPECT_TRUE(store) << (store ? "" : store.error().message);
    return *std::move(store);
  }

  Cluster cluster_;
};

TEST_P(LayerwiseTest, LayersGoAndComeOneByOne) {
  Engine writer(cluster_.client_options()), reader(cluster_.client_options());
  const auto hashes = computed(writer, 1, 4);
  Client::LayerStore store = begin_store(writer, hashes);
  for (std::uint32_t layer = 0; layer < 3; ++layer) ASSERT_TRUE(store.store_layer(layer));
  EXPECT_EQ(*reader.client.lookup(hashes), 0u);  // not published before finish()
  const Result<Stored> stored = store.finish();
  ASSERT_TRUE(stored) << stored.error().message;
  EXPECT_EQ(stored->written, 4u);
  Result<Client::LayerLoad> load = reader.client.begin_load(reader.cache, hashes, pages(4));
  ASSERT_TRUE(load);
  EXPECT_EQ(load->blocks(), 4u);
  for (std::uint32_t layer = 0; layer < 3; ++layer) {
    const Result<std::size_t> right = load->load_layer(layer);
    ASSERT_TRUE(right) << right.error().message;
    EXPECT_EQ(*right, 4u);
    for (std::size_t i = 0; i < 4; ++i)
      EXPECT_TRUE(reader.holds(hashes[i], static_cast<PageId>(i), layer, 1));
  }
  EXPECT_EQ(reader.client.statistics().damaged_blocks, 0u);
  // The same bytes as a store of whole blocks, also for loads of whole blocks.
  reader.clear();
  EXPECT_EQ(*reader.client.load(reader.cache, hashes, pages(4)), 4u);
  EXPECT_TRUE(reader.holds(hashes[3], 3));
}

TEST_P(LayerwiseTest, EachLayerCountsItsBytesWhenItIsCopied) {
  Engine writer(cluster_.client_options()), reader(cluster_.client_options());
  const auto hashes = computed(writer, 6, 2);
  const std::uint64_t layer_bytes = writer.client.geometry().layer_bytes();
  Client::LayerStore store = begin_store(writer, hashes);
  ASSERT_TRUE(store.store_layer(0));
  EXPECT_EQ(writer.client.statistics().copied_bytes, 2 * layer_bytes);
  for (const std::uint32_t layer : {1u, 2u}) ASSERT_TRUE(store.store_layer(layer));
  ASSERT_TRUE(store.finish());
  EXPECT_EQ(writer.client.statistics().copied_bytes, writer.client.statistics().stored_bytes);
  Result<Client::LayerLoad> load = reader.client.begin_load(reader.cache, hashes, pages(2));
  ASSERT_TRUE(load);
  ASSERT_EQ(*load->load_layer(0), 2u);
  EXPECT_EQ(reader.client.statistics().copied_bytes, 2 * layer_bytes);
  EXPECT_EQ(reader.client.statistics().loaded_bytes, 0u);
  for (const std::uint32_t layer : {1u, 2u}) ASSERT_EQ(*load->load_layer(layer), 2u);
  EXPECT_EQ(reader.client.statistics().loaded_bytes, 2 * 3 * layer_bytes);
  EXPECT_EQ(reader.client.statistics().copied_bytes, 2 * 3 * layer_bytes);
}

TEST_P(LayerwiseTest, AnyOrderDoesAndAMissingLayerIsNamed) {
  Engine writer(cluster_.client_options());
  const auto hashes = computed(writer, 2, 2);
  Client::LayerStore store = begin_store(writer, hashes);
  ASSERT_TRUE(store.store_layer(2));
  ASSERT_TRUE(store.store_layer(0));
  EXPECT_EQ(store.finish().error().code, Code::kInvalidArgument);
  EXPECT_EQ(store.store_layer(0).error().code, Code::kInvalidArgument);
  EXPECT_EQ(store.store_layer(3).error().code, Code::kInvalidArgument);
  ASSERT_TRUE(store.store_layer(1));
  ASSERT_TRUE(store.finish());
  Engine reader(cluster_.client_options());
  EXPECT_EQ(*reader.client.load(reader.cache, hashes, pages(2)), 2u);
  EXPECT_TRUE(reader.holds(hashes[1], 1));
}

TEST_P(LayerwiseTest, WhatIsNotFinishedIsNeverSeenAndNothingIsLost) {
  Engine writer(cluster_.client_options());
  for (int round = 0; round < 100; ++round) {  // more blocks than the pool has
    const auto hashes = computed(writer, 3, 4);
    Client::LayerStore store = begin_store(writer, hashes);
    ASSERT_TRUE(store.store_layer(0));
    EXPECT_EQ(*writer.client.lookup(hashes), 0u);
  }
}

TEST_P(LayerwiseTest, WhatIsEvictedMeanwhileIsNotCounted) {
  Engine writer(cluster_.client_options()), reader(cluster_.client_options());
  const auto hashes = computed(writer, 4, 3);
  ASSERT_TRUE(writer.client.store(writer.cache, nullptr, hashes, pages(3)));
  Result<Client::LayerLoad> load = reader.client.begin_load(reader.cache, hashes, pages(3));
  ASSERT_TRUE(load);
  ASSERT_EQ(*load->load_layer(0), 3u);
  for (std::uint64_t prompt = 100; prompt < 140; ++prompt) {  // evicts all earlier blocks
    const auto others = computed(writer, prompt, 4);
    ASSERT_TRUE(writer.client.store(writer.cache, nullptr, others, pages(4)));
  }
  EXPECT_EQ(*load->load_layer(1), 0u);
  EXPECT_EQ(load->blocks(), 0u);
  EXPECT_GT(reader.client.statistics().stale_blocks, 0u);
}

TEST_P(LayerwiseTest, ACacheIsNotUnregisteredWhileALayerCallOnItIsOpen) {
  Engine engine(cluster_.client_options());
  const auto hashes = computed(engine, 5, 2);
  const auto expect_busy = [&](const char* what) {
    const Status refused = engine.client.unregister_cache(engine.cache);
    ASSERT_FALSE(refused);
    EXPECT_EQ(refused.error().code, Code::kBusy);
    const std::string named = "layer " + std::string(what) + " of cache " +
                              std::to_string(static_cast<std::uint32_t>(engine.cache));
    EXPECT_NE(std::string(refused.error().message).find(named), std::string::npos)
        << refused.error().message;
  };
  {
    Client::LayerStore dropped = begin_store(engine, hashes);
    ASSERT_TRUE(dropped.store_layer(0));
    expect_busy("store");
  }
  Client::LayerStore store = begin_store(engine, hashes);
  for (std::uint32_t layer = 0; layer < 3; ++layer) ASSERT_TRUE(store.store_layer(layer));
  expect_busy("store");
  ASSERT_TRUE(store.finish());
  Result<Client::LayerLoad> load = engine.client.begin_load(engine.cache, hashes, pages(2));
  ASSERT_TRUE(load);
  for (const std::uint32_t layer : {2u, 0u}) ASSERT_TRUE(load->load_layer(layer));
  expect_busy("load");
  ASSERT_TRUE(load->load_layer(1));
  EXPECT_EQ(*load->load_layer(0), 2u);  // loading again is harmless while the cache is registered
  // both objects exist, but hold nothing
  EXPECT_TRUE(engine.client.unregister_cache(engine.cache));
  EXPECT_EQ(load->load_layer(0).error().code, Code::kNotFound);
}

// Damages these bytes at their only place in the pool.
void damage(const std::string& path, std::span<const std::byte> bytes) {
  std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
  const std::string all((std::istreambuf_iterator<char>(file)), {});
  const std::size_t at =
      all.find(std::string(reinterpret_cast<const char*>(bytes.data()), bytes.size()));
  ASSERT_NE(at, std::string::npos);
  file.clear();
  file.seekp(static_cast<std::streamoff>(at));
  file.put(static_cast<char>(~all[at]));
}

TEST_P(LayerwiseTest, ALoadOfAllLayersIsVerifiedHoweverTheyAreGiven) {
  ClientOptions options = cluster_.client_options();
  options.checksums = true;
  Engine writer(options), reader(options);
  const auto hashes = computed(writer, 5, 3);
  ASSERT_EQ(writer.client.store(writer.cache, nullptr, hashes, pages(3))->written, 3u);
  damage(cluster_.path(), std::span(writer.memory[1]).subspan(writer.page_bytes(), 64));
  const CopyOptions all = {.first_layer = 0, .layers = options.geometry.layers};
  EXPECT_EQ(*reader.client.load(reader.cache, hashes, pages(3), all), 1u);
  EXPECT_EQ(reader.client.statistics().damaged_blocks, 1u);
}

TEST_P(LayerwiseTest, ChecksumsAreVerifiedInEveryBlockOrderAndEveryOrderOfLayers) {
  for (const char* order : {"layer_first", "layer_first_hnd", "page_first", "page_first_direct"}) {
    for (const std::vector<std::uint32_t>& layers :
         {std::vector<std::uint32_t>{0, 1, 2}, {2, 0, 1}}) {
      SCOPED_TRACE(std::string(order) + ", layer " + std::to_string(layers[0]) + " first");
      ClientOptions options = cluster_.client_options();
      options.block_order = order;
      options.checksums = true;
      Engine writer(options), reader(options);
      const auto hashes = computed(writer, 6 + layers[0], 3);
      ASSERT_EQ(writer.client.store(writer.cache, nullptr, hashes, pages(3))->written, 3u);
      const auto load = [&] {
        Result<Client::LayerLoad> begun = reader.client.begin_load(reader.cache, hashes, pages(3));
        std::vector<std::size_t> right;
        for (const std::uint32_t layer : layers) {
          const Result<std::size_t> loaded = begun->load_layer(layer);
          EXPECT_TRUE(loaded) << loaded.error().message;
          right.push_back(loaded ? *loaded : 0);
        }
        return right;
      };
      EXPECT_EQ(load(), (std::vector<std::size_t>{3, 3, 3}));
      for (std::size_t i = 0; i < 3; ++i)
        EXPECT_TRUE(reader.holds(hashes[i], static_cast<PageId>(i)));
      EXPECT_EQ(reader.client.statistics().damaged_blocks, 0u);
      // of block 1
      damage(cluster_.path(), std::span(writer.memory[1]).subspan(writer.page_bytes(), 64));
      EXPECT_EQ(load(), (std::vector<std::size_t>{3, 3, 1}));
      EXPECT_EQ(reader.client.statistics().damaged_blocks, 1u);
      EXPECT_EQ(reader.client.statistics().stale_blocks, 0u);
    }
  }
}

TEST_P(LayerwiseTest, LayersAreStoredInEveryBlockOrder) {
  for (const char* order : {"layer_first", "layer_first_hnd", "page_first", "page_first_direct"}) {
    SCOPED_TRACE(order);
    ClientOptions options = cluster_.client_options();
    options.block_order = order;
    options.checksums = true;
    Engine writer(options), reader(options);
    const auto hashes = computed(writer, 9, 2);
    Client::LayerStore store = begin_store(writer, hashes);
    for (std::uint32_t layer = 0; layer < 3; ++layer) {
      const Status stored = store.store_layer(layer);
      ASSERT_TRUE(stored) << stored.error().message;
    }
    ASSERT_TRUE(store.finish());
    EXPECT_EQ(*reader.client.load(reader.cache, hashes, pages(2)), 2u);
    EXPECT_TRUE(reader.holds(hashes[1], 1));
  }
}

INSTANTIATE_TEST_SUITE_P(Domains, LayerwiseTest, ::testing::Values("coherent", "noncoherent"));

}  // namespace
}  // namespace cachalot::client
