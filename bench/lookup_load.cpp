// The C++ side of bench/python_overhead.py: lookup and load of the same blocks in the same pool, by the
// public API alone.
//
// usage: lookup_load POOL BLOCKS ROUNDS, with that script's geometry and model; prints nanoseconds a round
#include <cachalot/client.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <numeric>

int main(int argc, char** argv) {
  if (argc != 4) return 2;
  const auto blocks = static_cast<std::uint32_t>(std::atoi(argv[2]));
  const int rounds = std::atoi(argv[3]);
  cachalot::ClientOptions options;
  options.pool = {argv[1]};
  options.model = "overhead@1";
  options.geometry.layers = 3;
  options.geometry.kv_heads = 1;
  options.geometry.head_dim = 16;
  options.geometry.dtype = cachalot::DType::kF16;
  options.geometry.block_tokens = 16;
  cachalot::Result<cachalot::Client> client = cachalot::Client::attach(options);
  if (!client) return std::fprintf(stderr, "%s\n", client.error().message), 1;

  const std::uint64_t tensor_bytes = blocks * options.geometry.layer_bytes();
  std::vector<std::vector<char>> tensors(options.geometry.layers, std::vector<char>(tensor_bytes));
  cachalot::PagedCache description{.layout = "vllm_kbnhc", .pages = blocks};
  for (auto& tensor : tensors) description.tensors.push_back({tensor.data(), tensor_bytes});
  const cachalot::Result<cachalot::CacheId> cache = client->register_cache(description);
  if (!cache) return std::fprintf(stderr, "%s\n", cache.error().message), 1;

  std::vector<std::uint32_t> tokens(std::size_t{blocks} * options.geometry.block_tokens);
  std::iota(tokens.begin(), tokens.end(), 0u);
  const std::vector<cachalot::BlockHash> hashes = client->hash_tokens(tokens);
  std::vector<cachalot::PageId> pages(blocks);
  std::iota(pages.begin(), pages.end(), 0u);
  for (int round = 0; round < rounds; ++round) {
    const auto start = std::chrono::steady_clock::now();
    const auto found = client->lookup(hashes);
    const auto loaded = client->load(*cache, hashes, pages);
    const std::chrono::nanoseconds took = std::chrono::steady_clock::now() - start;
    if (!found || !loaded || *found != blocks || *loaded != blocks) return 1;
    std::printf("%lld\n", static_cast<long long>(took.count()));
  }
}
