// An engine whose KV cache has three tiers: small device memory, host memory, and a pool that outlives the engine.
//
//   tiers /dev/shm/pool
#include <cachalot/keeper.h>
#include <cachalot/tier.h>

#include <algorithm>
#include <cstdio>
#include <numeric>

using namespace cachalot;

constexpr std::uint32_t kPages = 16, kBlockTokens = 16, kLayers = 4;

KvGeometry geometry() {
  KvGeometry geometry;
  geometry.layers = kLayers;
  geometry.kv_heads = 2;
  geometry.head_dim = 64;
  geometry.block_tokens = kBlockTokens;
  return geometry;
}

struct Engine {
  explicit Engine(const char* pool) : memory(kLayers) {
    TieredCacheOptions options;
    options.device.layout = "vllm_bknhc";
    options.device.pages = kPages;
    for (auto& tensor : memory) {
      tensor.resize(kPages * geometry().layer_bytes());
      options.device.tensors.push_back({tensor.data(), tensor.size()});
    }
    options.shared.pool = {pool};
    options.shared.model = "example";
    options.shared.geometry = geometry();
    options.host_ratio = 4;
    options.prefetch = {.threshold_tokens = 16, .stop = PrefetchStop::kWaitComplete};
    Result<TieredCache> made = TieredCache::make(options);
    if (made) {
      cache = std::make_unique<TieredCache>(*std::move(made));
    } else {
      std::fprintf(stderr, "%s\n", made.error().message);
    }
  }

  // @return whether all bytes of the prompt are right in the end
  bool serve(const std::vector<std::uint32_t>& prompt, TierStart& found) {
    const Result<RequestId> request = cache->open(prompt);
    if (!request || !cache->wait_ready(*request)) return false;
    const Result<TierStart> start = cache->start(*request);
    if (!start) return std::fprintf(stderr, "%s\n", start.error().message), false;
    const std::size_t blocks = prompt.size() / kBlockTokens;
    bool is_right = true;
    for (std::uint32_t layer = 0; layer < kLayers; ++layer) {
      if (!cache->wait_layer(*request, layer)) return false;
      for (std::size_t block = 0; block < blocks; ++block) {
        const std::uint64_t bytes = geometry().layer_bytes();
        unsigned char* const page = memory[layer].data() + start->pages[block] * bytes;
        const auto value = static_cast<unsigned char>(prompt[block * kBlockTokens] * 7 + layer);
        if (block >= start->cached_tokens / kBlockTokens)
          std::fill_n(page, bytes, value);  // the forward pass
        is_right &=
            std::all_of(page, page + bytes, [&](unsigned char byte) { return byte == value; });
      }
    }
    is_right &=
        cache->commit(*request, prompt).ok() && cache->close(*request).ok() && cache->flush().ok();
    std::printf("%llu tokens from device, %llu from host memory, of these %llu from the pool\n",
                static_cast<unsigned long long>(start->device_tokens),
                static_cast<unsigned long long>(start->host_tokens),
                static_cast<unsigned long long>(start->shared_tokens));
    found = *start;
    return is_right;
  }

  std::vector<std::vector<unsigned char>> memory;
  std::unique_ptr<TieredCache> cache;  // destroyed first
};

int main(int argc, char** argv) {
  const char* const pool = argc > 1 ? argv[1] : "/dev/shm/cachalot_example_tiers";
  Result<EmbeddedKeeper> keeper = EmbeddedKeeper::start(
      {.pool = pool, .block_bytes = geometry().block_bytes(), .capacity_blocks = 256});
  if (!keeper) return std::fprintf(stderr, "%s\n", keeper.error().message), 1;
  std::vector<std::uint32_t> first(8 * kBlockTokens + 1), second(first.size());
  std::iota(first.begin(), first.end(), 1u);
  std::iota(second.begin(), second.end(), 1000u);
  TierStart found;
  {
    Engine engine(pool);
    if (!engine.cache) return 1;
    // Device memory has room for one prompt: the other one comes back from host memory.
    if (!engine.serve(first, found) || !engine.serve(second, found)) return 1;
    if (!engine.serve(first, found) || found.host_tokens != 128) return 1;
  }
  Engine restarted(pool);
  return restarted.cache && restarted.serve(first, found) && found.shared_tokens == 128 ? 0 : 1;
}
