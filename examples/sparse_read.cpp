// Sparse attention: loads 3 ranges of tokens of each block instead of all 64 tokens.
//
//   sparse_read /dev/shm/pool
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
  geometry.layers = 4;
  geometry.attention = Attention::kLatent;
  geometry.kv_lora_rank = 512;
  geometry.qk_rope_head_dim = 64;
  geometry.block_tokens = 64;
  const auto keeper = EmbeddedKeeper::start(
      {.pool = pool, .block_bytes = geometry.block_bytes(), .capacity_blocks = 32});
  CHECK(keeper);
  Result<Client> client =
      Client::attach({.pool = {pool}, .model = "example", .geometry = geometry});
  CHECK(client);

  std::vector<std::vector<char>> memory(geometry.layers,
                                        std::vector<char>(8 * geometry.layer_bytes(), 5));
  PagedCache description{.layout = "mla_joint", .pages = 8};
  for (auto& layer : memory) description.tensors.push_back({layer.data(), layer.size()});
  const Result<CacheId> cache = client->register_cache(description);
  CHECK(cache);
  const std::vector<std::uint32_t> prompt(4 * 64, 9);
  const std::vector<BlockHash> hashes = client->hash_tokens(prompt);
  std::vector<PageId> pages(hashes.size());
  std::iota(pages.begin(), pages.end(), 0u);
  CHECK(client->store(*cache, nullptr, hashes, pages));

  for (auto& layer : memory) std::fill(layer.begin(), layer.end(), char{0});
  // the attention sink, one token, the tail
  const TokenRange chosen[] = {{0, 4}, {17, 18}, {60, 64}};
  const std::vector<std::span<const TokenRange>> tokens(hashes.size(), chosen);
  const Result<std::size_t> loaded = client->load_tokens(*cache, hashes, pages, tokens);
  CHECK(loaded);

  const std::size_t row = geometry.layer_token_bytes();
  for (std::uint32_t token = 0; token < geometry.block_tokens; ++token) {
    const bool is_chosen = token < 4 || token == 17 || token >= 60;
    if (memory[3][2 * geometry.layer_bytes() + token * row] != (is_chosen ? 5 : 0)) return 1;
  }
  std::printf("9 of %u tokens of %zu blocks loaded\n", geometry.block_tokens, *loaded);
  return 0;
}
