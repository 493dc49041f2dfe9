// Two processes share the KV cache of a prompt: the first computes and stores it, the second loads it.
//
//   share_prefix /dev/shm/pool
#include <cachalot/client.h>
#include <cachalot/keeper.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <numeric>

using namespace cachalot;

// One engine: 64 pages of 16 tokens, one tensor per layer with K and V.
static int run_engine(const std::string& pool, bool computes) {
  const KvGeometry geometry = *KvGeometry::of_model("Qwen2.5-7B", DType::kBf16, 16);
  Result<Client> client =
      Client::attach({.pool = {pool}, .model = "Qwen2.5-7B@example", .geometry = geometry});
  if (!client) return std::fprintf(stderr, "attach: %s\n", client.error().message), 1;

  std::vector<std::vector<char>> memory(geometry.layers,
                                        std::vector<char>(64 * geometry.layer_bytes()));
  PagedCache description{.layout = "vllm_bknhc", .pages = 64};
  for (auto& layer : memory) description.tensors.push_back({layer.data(), layer.size()});
  const Result<CacheId> cache = client->register_cache(description);
  if (!cache) return std::fprintf(stderr, "cache: %s\n", cache.error().message), 1;

  std::vector<std::uint32_t> prompt(40 * 16);
  std::iota(prompt.begin(), prompt.end(), 0u);
  const std::vector<BlockHash> hashes = client->hash_tokens(prompt);
  std::vector<PageId> pages(hashes.size());
  std::iota(pages.begin(), pages.end(), computes ? 0u : 24u);

  const Result<std::size_t> hit = client->load(*cache, hashes, pages);
  if (!hit) return std::fprintf(stderr, "load: %s\n", hit.error().message), 1;
  std::printf("%s: %zu of %zu blocks came from the pool\n", computes ? "first" : "second", *hit,
              hashes.size());
  if (!computes)
    return *hit == hashes.size() && memory[5][24 * geometry.layer_bytes()] == 42 ? 0 : 1;

  for (auto& layer : memory) std::fill(layer.begin(), layer.end(), 42);  // the forward pass
  const Result<Stored> stored = client->store(*cache, nullptr, hashes, pages);
  return stored && stored->blocks == hashes.size() ? 0 : 1;
}

int main(int argc, char** argv) {
  const std::string pool = argc > 1 ? argv[1] : "/dev/shm/cachalot_example";
  const std::uint64_t block_bytes =
      KvGeometry::of_model("Qwen2.5-7B", DType::kBf16, 16)->block_bytes();
  Result<EmbeddedKeeper> keeper = EmbeddedKeeper::start(
      {.pool = pool, .block_bytes = block_bytes, .capacity_blocks = 64, .clients = 4});
  if (!keeper) return std::fprintf(stderr, "keeper: %s\n", keeper.error().message), 1;
  for (const bool computes : {true, false}) {
    if (fork() == 0) {
      const int code = run_engine(pool, computes);
      std::fflush(stdout);
      _exit(code);
    }
    int status = 0;
    if (wait(&status) < 0 || status != 0) return 1;
  }
  return keeper->stop() ? 0 : 1;
}
