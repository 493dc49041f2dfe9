// What it costs to describe a request of 32 K tokens (64 layers, pages of 16 tokens) as a stream, beside the list of
// one address for each page, layer and part that other engines post; and to plan a pair of instances.
#include <benchmark/benchmark.h>

#include <cstdio>
#include <cstdlib>
#include <vector>

#include "transfer/pair/geometry_pair.h"
#include "transfer/pair/kv_stream.h"

namespace cachalot::transfer {
namespace {

constexpr std::uint32_t kTokens = 32768, kPageTokens = 16, kPages = 4096, kLayers = 64;

template <class T>
T value_of(Result<T> result) {
  if (!result) {
    std::fprintf(stderr, "%s\n", result.error().message);
    std::abort();
  }
  return *std::move(result);
}

KvGeometry geometry_of(bool latent) {
  KvGeometry g;
  g.layers = kLayers;
  g.block_tokens = kPageTokens;
  if (latent) {
    g.attention = Attention::kLatent;
    g.kv_lora_rank = 512;
    g.qk_rope_head_dim = 64;
  } else {
    g.kv_heads = 8;
    g.head_dim = 128;
  }
  return g;
}

struct Request {
  Request(const char* layout, bool latent) : cache(cache_of(layout, latent)) {
    for (std::uint32_t i = 0; i < kTokens / kPageTokens; ++i) {
      pages.push_back((i * 1237 + 11) % kPages);
    }
    slice = {pages, 0, kTokens, {0, kLayers}, {0, cache.geometry().heads()}};
  }
  // Tensors of the right size at addresses that nothing touches.
  static kv::EngineCache cache_of(const char* layout, bool latent) {
    const kv::CacheShape shape{geometry_of(latent), kPageTokens, kPages, 0};
    const kv::Form form = value_of(kv::find_layout(layout))->form(shape.geometry.attention);
    const std::uint32_t count = value_of(kv::strides_of(form, shape, layout)).tensors;
    const std::uint64_t all = shape.geometry.token_bytes() * kPageTokens * kPages;
    std::vector<kv::Tensor> tensors;
    for (std::uint32_t i = 0; i < count; ++i) {
      std::uint64_t bytes = all / count;
      if (latent && count == 2 * kLayers) bytes = all / kLayers * (i % 2 == 0 ? 512 : 64) / 576;
      tensors.push_back({reinterpret_cast<std::byte*>((i + std::uint64_t{1}) << 38), bytes});
    }
    return value_of(kv::EngineCache::make(shape, layout, tensors));
  }

  kv::EngineCache cache;
  std::vector<std::uint32_t> pages;
  KvSlice slice;
};

void describe(benchmark::State& state, const char* layout, bool latent) {
  const Request request(layout, latent);
  std::uint64_t runs = 0;
  for (auto _ : state) {
    const StreamShape shape = value_of(stream_shape(request.cache, request.slice));
    const StreamOrder order = value_of(choose_order(shape, shape));
    const ByteStream stream = value_of(kv_stream(request.cache, request.slice, order));
    runs = stream.runs();
    benchmark::DoNotOptimize(runs);
  }
  state.counters["runs"] = static_cast<double>(runs);
  state.counters["bytes"] = static_cast<double>(kTokens * request.cache.geometry().token_bytes());
}
BENCHMARK_CAPTURE(describe, nhd_apart, "vllm_kbnhc", false)->Unit(benchmark::kMicrosecond);
BENCHMARK_CAPTURE(describe, hnd_apart, "vllm_kbhnc", false)->Unit(benchmark::kMicrosecond);
BENCHMARK_CAPTURE(describe, nhd_packed, "vllm_bnhkc", false)->Unit(benchmark::kMicrosecond);
BENCHMARK_CAPTURE(describe, tensor_a_part, "split_bnhc", false)->Unit(benchmark::kMicrosecond);
BENCHMARK_CAPTURE(describe, mla_together, "mla_joint", true)->Unit(benchmark::kMicrosecond);
BENCHMARK_CAPTURE(describe, mla_apart, "mla_split", true)->Unit(benchmark::kMicrosecond);

// The baseline: pairs of address and length.
void list_addresses(benchmark::State& state) {
  const Request request("vllm_kbnhc", false);
  for (auto _ : state) {
    std::vector<Piece> list;
    list.reserve(2 * kLayers * request.pages.size());
    for (std::uint32_t layer = 0; layer < kLayers; ++layer) {
      for (const PartStrides& part : request.cache.strides().part) {
        const auto base = reinterpret_cast<std::uintptr_t>(
                              request.cache.bases()[part.tensor + layer * part.layer_tensors]) +
                          part.offset;
        for (const std::uint32_t page : request.pages) {
          list.push_back({base + page * part.page, kPageTokens * part.token});
        }
      }
    }
    benchmark::DoNotOptimize(list.data());
  }
}
BENCHMARK(list_addresses)->Unit(benchmark::kMicrosecond);

// Every run of the stream, without touching it.
void visit(benchmark::State& state, const char* layout) {
  const Request request(layout, false);
  const StreamShape shape = value_of(stream_shape(request.cache, request.slice));
  const StreamOrder order = value_of(choose_order(shape, shape));
  const ByteStream stream = value_of(kv_stream(request.cache, request.slice, order));
  for (auto _ : state) {
    ByteStreamCursor cursor(stream);
    for (Piece piece = cursor.next(~0u); piece.bytes > 0; piece = cursor.next(~0u)) {
      benchmark::DoNotOptimize(piece.at);
    }
  }
  state.SetItemsProcessed(state.iterations() * static_cast<std::int64_t>(stream.runs()));
}
BENCHMARK_CAPTURE(visit, nhd_apart, "vllm_kbnhc")->Unit(benchmark::kMicrosecond);

void plan(benchmark::State& state) {
  const auto ranks_of = [](std::uint32_t size) {
    std::vector<Rank> ranks(size);
    for (std::uint32_t rank = 0; rank < size; ++rank) {
      ranks[rank].geometry = geometry_of(false);
      ranks[rank].geometry.kv_heads = 8 / size;
      ranks[rank].geometry.tp_rank = rank;
      ranks[rank].geometry.tp_size = size;
    }
    return ranks;
  };
  const std::vector<Rank> sources = ranks_of(8), destinations = ranks_of(4);
  for (auto _ : state) {
    benchmark::DoNotOptimize(value_of(plan_pair(sources, destinations)).fetches().data());
  }
}
BENCHMARK(plan)->Unit(benchmark::kMicrosecond);

}  // namespace
}  // namespace cachalot::transfer

BENCHMARK_MAIN();
