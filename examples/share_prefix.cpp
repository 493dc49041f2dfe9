// Two processes share the KV cache of a prompt: the first computes and stores it, the second loads it.
//
//   cachalot serve --pool /dev/shm/kv --create --block-bytes 32KiB --capacity 1GiB &
//   share_prefix /dev/shm/kv
#include <cachalot/client.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <numeric>

using namespace cachalot;

// One engine: 64 pages of 16 tokens, one tensor per layer with K and V.
static int run_engine(const std::string& pool, bool computes) {
  const KvGeometry geometry{
      .layers = 4, .kv_heads = 2, .head_dim = 64, .dtype = DType::kF16, .block_tokens = 16};
  Result<Client> client =
      Client::attach({.pool = {pool}, .model = "share_prefix.cpp@1", .geometry = geometry});
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
    return *hit == hashes.size() && memory[3][24 * geometry.layer_bytes()] == 42 ? 0 : 1;

  for (auto& layer : memory) std::fill(layer.begin(), layer.end(), 42);  // the forward pass
  const Result<Stored> stored = client->store(*cache, nullptr, hashes, pages);
  return stored && stored->blocks == hashes.size() ? 0 : 1;
}

int main(int argc, char** argv) {
  const std::string pool = argc > 1 ? argv[1] : "/dev/shm/kv";
  for (const bool computes : {true, false}) {
    if (fork() == 0) {
      const int code = run_engine(pool, computes);
      std::fflush(stdout);
      _exit(code);
    }
    int status = 0;
    if (wait(&status) < 0 || status != 0) return 1;
  }
  return 0;
}
