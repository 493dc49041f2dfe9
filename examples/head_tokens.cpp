// Sparse attention: each KV head of each layer reads tokens of its own, packed one after the other.
//
//   head_tokens /dev/shm/pool
#include <cachalot/client.h>
#include <cachalot/keeper.h>

#include <cstdio>
#include <numeric>

using namespace cachalot;

#define CHECK(result) \
  if (!(result)) return std::fprintf(stderr, "%s: %s\n", #result, (result).error().message), 1

int main(int argc, char** argv) {
  const std::string pool = argc > 1 ? argv[1] : "/dev/shm/cachalot_example";
  constexpr std::uint32_t kPrompt = 128, kMost = 3;  // tokens of the prompt; of a head, at most
  KvGeometry geometry;
  geometry.layers = 2;
  geometry.kv_heads = 4;
  geometry.head_dim = 64;
  geometry.block_tokens = 16;
  const auto keeper = EmbeddedKeeper::start(
      {.pool = pool, .block_bytes = geometry.block_bytes(), .capacity_blocks = 32});
  CHECK(keeper);
  Result<Client> client =
      Client::attach({.pool = {pool}, .model = "example", .geometry = geometry});
  CHECK(client);

  // An engine's pages: of each layer K and V, (pages, tokens, heads, dim). Each token has its number in all bytes.
  std::vector<std::vector<char>> memory(geometry.layers,
                                        std::vector<char>(8 * geometry.layer_bytes()));
  const std::size_t row = geometry.head_dim * 2, token_bytes = geometry.kv_heads * row;
  PagedCache pages{.layout = "vllm_kbnhc", .pages = 8};
  for (auto& layer : memory) {
    for (std::size_t i = 0; i < layer.size(); ++i)
      layer[i] = static_cast<char>(i / token_bytes % kPrompt);
    pages.tensors.push_back({layer.data(), layer.size()});
  }
  const Result<CacheId> cache = client->register_cache(pages);
  CHECK(cache);
  const std::vector<BlockHash> hashes = client->hash_tokens(std::vector<std::uint32_t>(kPrompt, 9));
  std::vector<PageId> ids(hashes.size());
  std::iota(ids.begin(), ids.end(), 0u);
  CHECK(client->store(*cache, nullptr, hashes, ids));

  // What a sparse attention kernel reads: [layer][head][i] of keys and values.
  std::vector<char> packed(geometry.layers * geometry.kv_heads * kMost * 2 * row);
  const Result<CacheId> rows = client->register_cache({.layout = "vllm_lhbnc",
                                                       .tensors = {{packed.data(), packed.size()}},
                                                       .pages = kMost,
                                                       .page_tokens = 1});
  CHECK(rows);
  // Of layer 0, heads 0 to 3; of layer 1, heads 0 to 3.
  const std::vector<std::vector<std::uint32_t>> chosen = {
      {0, 17, 127}, {0, 18, 99}, {5}, {6, 7, 8}, {0, 1}, {64, 65, 66}, {}, {120, 126}};
  const std::vector<std::span<const std::uint32_t>> tokens(chosen.begin(), chosen.end());
  const Result<std::size_t> valid = client->load_head_tokens(
      *rows, hashes, std::span(ids).first(kMost), tokens, TokenPlace::kPacked);
  CHECK(valid);

  for (std::size_t list = 0; list < chosen.size(); ++list) {
    for (std::size_t i = 0; i < chosen[list].size(); ++i) {
      if (packed[(list * kMost + i) * 2 * row] != static_cast<char>(chosen[list][i])) return 1;
    }
  }
  std::printf("rows of 8 heads out of %zu blocks\n", *valid);
  return *valid == hashes.size() ? 0 : 1;
}
