// Layer by layer: copies the next layer's KV while a layer is computed.
//
//   layerwise /dev/shm/pool
#include <cachalot/client.h>
#include <cachalot/keeper.h>

#include <cstdio>
#include <numeric>

using namespace cachalot;

#define CHECK(result) \
  if (!(result)) return std::fprintf(stderr, "%s: %s\n", #result, (result).error().message), 1

int main(int argc, char** argv) {
  const std::string pool = argc > 1 ? argv[1] : "/dev/shm/cachalot_example";
  KvGeometry geometry;
  geometry.layers = 8;
  geometry.kv_heads = 4;
  geometry.head_dim = 64;
  geometry.block_tokens = 16;
  const auto keeper = EmbeddedKeeper::start(
      {.pool = pool, .block_bytes = geometry.block_bytes(), .capacity_blocks = 32});
  CHECK(keeper);
  Result<Client> client =
      Client::attach({.pool = {pool}, .model = "example", .geometry = geometry});
  CHECK(client);

  std::vector<std::vector<char>> memory(geometry.layers,
                                        std::vector<char>(16 * geometry.layer_bytes()));
  PagedCache description{.layout = "vllm_kbnhc", .pages = 16};
  for (auto& layer : memory) description.tensors.push_back({layer.data(), layer.size()});
  const Result<CacheId> cache = client->register_cache(description);
  CHECK(cache);
  const std::vector<std::uint32_t> prompt(8 * 16, 7);
  const std::vector<BlockHash> hashes = client->hash_tokens(prompt);
  std::vector<PageId> pages(hashes.size());
  std::iota(pages.begin(), pages.end(), 0u);

  Result<Client::LayerStore> store = client->begin_store(*cache, nullptr, hashes, pages);
  CHECK(store);
  for (std::uint32_t layer = 0; layer < geometry.layers; ++layer) {
    // computes this layer
    std::fill(memory[layer].begin(), memory[layer].end(), static_cast<char>(layer));
    CHECK(store->store_layer(layer));
  }
  const Result<Stored> stored = store->finish();
  CHECK(stored);

  for (auto& layer : memory) std::fill(layer.begin(), layer.end(), char{-1});
  Result<Client::LayerLoad> load = client->begin_load(*cache, hashes, pages);
  CHECK(load);
  for (std::uint32_t layer = 0; layer < geometry.layers; ++layer) {
    const Result<std::size_t> right = load->load_layer(layer);
    CHECK(right);  // attention of this layer may start for this many blocks
    if (*right != hashes.size() || memory[layer][0] != static_cast<char>(layer)) return 1;
  }
  std::printf("%zu blocks stored and loaded layer by layer\n", stored->blocks);
  return 0;
}
