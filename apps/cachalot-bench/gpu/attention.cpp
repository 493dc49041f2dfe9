#include "attention.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <numeric>
#include <string>

#include "attention_call.h"
#include "attention_kernels.h"
#include "base/rng.h"
#include "device_memory/cuda/cuda_backend.h"
#include "gpu.h"
#include "vtensor/vtensor_set.h"

namespace cachalot::apps::bench {
namespace {

using vtensor::KvLayout;

constexpr std::uint32_t kPageTokens = 16;  // of vLLM's pages
constexpr std::uint32_t kCopyThreads = 256, kCopyBlocks = 2048;

// Llama-3-8B: 32 layers, 8 heads of keys and values, 32 of queries.
struct Load {
  std::uint32_t requests, tokens, layers, kv_heads;

  std::uint64_t row_bytes() const { return std::uint64_t{kv_heads} * kHeadBytes; }
  std::uint64_t queries() const { return std::uint64_t{requests} * kv_heads * kGroup; }
  std::uint64_t kv_bytes() const { return 2 * row_bytes() * tokens * requests * layers; }
  std::uint32_t pages_each() const { return (tokens + kPageTokens - 1) / kPageTokens; }
  std::string name() const { return std::to_string(requests) + "x" + std::to_string(tokens); }
  // So many thread blocks as to fill the GPU four times.
  std::uint32_t splits(std::uint32_t multiprocessors) const {
    const std::uint32_t wanted = 4 * multiprocessors / (requests * kv_heads) + 1;
    return std::clamp(wanted, 1u, std::max(1u, tokens / 64));
  }
};

// Where one way has the keys and values of all layers.
struct Placed {
  std::string name;
  std::vector<KvPlaces> layers;
  bool paged = false;
};

struct Way {
  std::string name;
  const Placed* kv = nullptr;
  const Placed* gathered = nullptr;  // where the pages are copied to first; null: not at all
  std::vector<double> us = {};       // of all layers
};

class AttentionBench {
 public:
  AttentionBench(const Settings& settings, Report& report, const Gpu& gpu,
                 device_memory::CudaBackend& backend)
      : report_(report), gpu_(gpu), backend_(backend), rounds_(settings.repeats) {}

  Status run(const Load& load) {
    show_progress("attention: " + load.name());
    load_ = load;
    splits_ = load.splits(gpu_.multiprocessors());
    vtensor::LocalBudget budget;
    std::array<std::unique_ptr<vtensor::VTensorSet>, 2> sets;
    CACHALOT_TRY(prepare());
    std::array<Placed, 2> ranges;
    for (const KvLayout layout : {KvLayout::kPerLayer, KvLayout::kFolded}) {
      const std::size_t i = layout == KvLayout::kFolded ? 1 : 0;
      CACHALOT_TRY_ASSIGN(sets[i], open_set(layout, budget));
      CACHALOT_TRY_ASSIGN(ranges[i], place_in_ranges(*sets[i]));
    }
    GpuMemory plain, pool, staging;
    CACHALOT_TRY_ASSIGN(plain, gpu_.allocate(load.kv_bytes()));
    CACHALOT_TRY_ASSIGN(const Placed in_plain, place_in_plain(plain));
    CACHALOT_TRY_ASSIGN(pool, gpu_.allocate(load.layers * pages() * page_bytes()));
    CACHALOT_TRY_ASSIGN(const Placed paged, place_in_pages(pool));
    CACHALOT_TRY_ASSIGN(staging, gpu_.allocate(load.kv_bytes() / load.layers));
    CACHALOT_TRY_ASSIGN(const Placed gathered, place_gathered(staging));
    for (const Placed* const placed :
         std::array<const Placed*, 4>{&ranges[0], &ranges[1], &in_plain, &paged}) {
      CACHALOT_TRY(fill(*placed));
    }

    std::vector<Way> ways = {{"contiguous/per_layer", &ranges[0]},
                             {"contiguous/folded", &ranges[1]},
                             {"contiguous/plain", &in_plain},
                             {"paged", &paged},
                             {"gathered_pages", &paged, &gathered}};
    CACHALOT_TRY(compare(ways));
    CACHALOT_TRY(measure(ways));
    CACHALOT_TRY(measure_memory());
    add(ways);
    tables_.clear();  // before the sets give their ranges back
    return {};
  }

 private:
  std::uint64_t pages() const { return std::uint64_t{load_.requests} * load_.pages_each(); }
  std::uint64_t page_bytes() const { return 2 * kPageTokens * load_.row_bytes(); }  // of one layer

  Status prepare() {
    for (auto& [kernel, name] :
         {std::pair{&contiguous_, "attention_contiguous"}, std::pair{&paged_, "attention_paged"},
          std::pair{&merge_, "attention_merge"}, std::pair{&fill_, "attention_fill"},
          std::pair{&gather_, "attention_gather"}}) {
      CACHALOT_TRY_ASSIGN(*kernel, gpu_.kernel(name));
    }
    std::vector<std::uint16_t> queries(load_.queries() * kHeadDim);
    for (std::uint32_t i = 0; i < queries.size(); ++i) queries[i] = query_number(i);
    CACHALOT_TRY_ASSIGN(queries_, uploaded(queries));
    CACHALOT_TRY_ASSIGN(partial_,
                        gpu_.allocate(load_.queries() * splits_ * kPartialFloats * sizeof(float)));
    CACHALOT_TRY_ASSIGN(out_, gpu_.allocate(result_bytes()));
    CACHALOT_TRY_ASSIGN(read_, gpu_.allocate_page_locked(result_bytes()));
    return {};
  }
  static std::uint16_t query_number(std::uint32_t i) {
    return made_up(0, 0, i / 4096, 1, i % 4096);
  }
  std::uint64_t result_bytes() const { return load_.queries() * kHeadDim * sizeof(float); }

  template <class T>
  Result<GpuMemory> uploaded(const std::vector<T>& values) const {
    CACHALOT_TRY_ASSIGN(GpuMemory memory, gpu_.allocate(values.size() * sizeof(T)));
    CACHALOT_TRY(gpu_.upload(memory.at(), values.data(), values.size() * sizeof(T)));
    return memory;
  }
  // A table for kernels that lives as long as the run.
  template <class T>
  Result<const T*> table(const std::vector<T>& values) {
    CACHALOT_TRY_ASSIGN(GpuMemory memory, uploaded(values));
    tables_.push_back(std::move(memory));
    return reinterpret_cast<const T*>(tables_.back().at());
  }

  Result<std::unique_ptr<vtensor::VTensorSet>> open_set(KvLayout layout,
                                                        vtensor::ChunkBudget& budget) {
    return vtensor::VTensorSet::open(
        backend_, budget,
        {.shape = {load_.layers, {load_.row_bytes(), load_.row_bytes()}},
         .layout = layout,
         .max_tokens = load_.tokens,
         .with_thread = false});
  }
  Result<Placed> place_in_ranges(vtensor::VTensorSet& set) {
    std::vector<std::uint64_t> bases;
    for (std::uint32_t r = 0; r < load_.requests; ++r) {
      CACHALOT_TRY_ASSIGN(const auto created, set.create(load_.tokens, load_.tokens));
      bases.push_back(created.vtensor->base());
    }
    CACHALOT_TRY_ASSIGN(const std::uint64_t* const at, table(bases));
    Placed placed{vtensor::kv_layout_name(set.layout().layout()), {}};
    for (std::uint32_t layer = 0; layer < load_.layers; ++layer) {
      const auto key = set.layout().view(layer, 0), value = set.layout().view(layer, 1);
      placed.layers.push_back({at, nullptr, key.offset, value.offset, key.stride, 0, 1, 0});
    }
    return placed;
  }
  // One allocation of the driver's: what a range is compared with.
  Result<Placed> place_in_plain(const GpuMemory& plain) {
    const std::uint64_t part = load_.tokens * load_.row_bytes(),
                        layer_bytes = 2 * part * load_.requests;
    std::vector<std::uint64_t> bases;
    for (std::uint32_t r = 0; r < load_.requests; ++r) bases.push_back(plain.at() + r * 2 * part);
    CACHALOT_TRY_ASSIGN(const std::uint64_t* const at, table(bases));
    Placed placed{"plain", {}};
    for (std::uint32_t layer = 0; layer < load_.layers; ++layer) {
      const std::uint64_t first = layer * layer_bytes;
      placed.layers.push_back({at, nullptr, first, first + part, load_.row_bytes(), 0, 1, 0});
    }
    return placed;
  }
  // As vLLM has them: a tensor a layer, pages anywhere, keys and values of a page side by side.
  Result<Placed> place_in_pages(const GpuMemory& pool) {
    std::vector<std::uint32_t> ids(pages());
    std::iota(ids.begin(), ids.end(), 0);
    base::Rng rng(3);
    for (std::size_t i = ids.size(); i > 1; --i) std::swap(ids[i - 1], ids[rng.below(i)]);
    CACHALOT_TRY_ASSIGN(const std::uint64_t* const base,
                        table(std::vector<std::uint64_t>{pool.at()}));
    CACHALOT_TRY_ASSIGN(const std::uint32_t* const pages_at, table(ids));
    Placed placed{"paged", {}, true};
    for (std::uint32_t layer = 0; layer < load_.layers; ++layer) {
      const std::uint64_t at = layer * pages() * page_bytes();
      placed.layers.push_back({base, pages_at, at, at + kPageTokens * load_.row_bytes(),
                               load_.row_bytes(), page_bytes(), kPageTokens, load_.pages_each()});
    }
    return placed;
  }
  // One layer, used again for each.
  Result<Placed> place_gathered(const GpuMemory& staging) {
    const std::uint64_t part = load_.tokens * load_.row_bytes();
    std::vector<std::uint64_t> bases;
    for (std::uint32_t r = 0; r < load_.requests; ++r) bases.push_back(staging.at() + r * 2 * part);
    CACHALOT_TRY_ASSIGN(const std::uint64_t* const at, table(bases));
    const KvPlaces layer{at, nullptr, 0, part, load_.row_bytes(), 0, 1, 0};
    return Placed{"gathered", std::vector<KvPlaces>(load_.layers, layer)};
  }

  AttentionCall call_of(const KvPlaces& kv) const {
    return {kv,
            reinterpret_cast<const std::uint16_t*>(queries_.at()),
            reinterpret_cast<float*>(partial_.at()),
            reinterpret_cast<float*>(out_.at()),
            load_.requests,
            load_.kv_heads,
            load_.tokens,
            splits_};
  }
  Status fill(const Placed& placed) {
    for (std::uint32_t layer = 0; layer < load_.layers; ++layer) {
      AttentionCall call = call_of(placed.layers[layer]);
      CACHALOT_TRY(
          gpu_.launch(fill_, kCopyBlocks, kCopyThreads, std::array<void*, 2>{&call, &layer}));
    }
    return gpu_.synchronize();
  }
  Status attend(const Way& way, std::uint32_t layer) const {
    const Placed& placed = way.gathered == nullptr ? *way.kv : *way.gathered;
    if (way.gathered != nullptr) {
      AttentionCall from = call_of(way.kv->layers[layer]);
      KvPlaces to = placed.layers[layer];
      CACHALOT_TRY(
          gpu_.launch(gather_, kCopyBlocks, kCopyThreads, std::array<void*, 2>{&from, &to}));
    }
    AttentionCall call = call_of(placed.layers[layer]);
    const std::array<void*, 1> parameters = {&call};
    const std::uint64_t blocks = std::uint64_t{load_.requests} * load_.kv_heads * splits_;
    CACHALOT_TRY(
        gpu_.launch(placed.paged ? paged_ : contiguous_, blocks, kAttentionThreads, parameters));
    return gpu_.launch(merge_, load_.queries(), kHeadDim, parameters);
  }
  Result<std::vector<float>> result_of(const Way& way, std::uint32_t layer) const {
    CACHALOT_TRY(attend(way, layer));
    CACHALOT_TRY(gpu_.copy(read_.at(), out_.at(), result_bytes()));
    CACHALOT_TRY(gpu_.synchronize());
    std::vector<float> out(load_.queries() * kHeadDim);
    std::memcpy(out.data(), read_.host(), result_bytes());
    return out;
  }

  // The same sums in the same order, so the same bits; and what they should be.
  Status compare(const std::vector<Way>& ways) const {
    for (const std::uint32_t layer : {0u, load_.layers - 1}) {
      CACHALOT_TRY_ASSIGN(const std::vector<float> wanted, result_of(ways.front(), layer));
      for (const Way& way : ways) {
        CACHALOT_TRY_ASSIGN(const std::vector<float> found, result_of(way, layer));
        if (std::memcmp(found.data(), wanted.data(), result_bytes()) == 0) continue;
        return Error::make(Code::kCorrupt, "attention: %s has other results than %s in layer %u",
                           way.name.c_str(), ways.front().name.c_str(), layer);
      }
      for (const std::uint32_t query : {0u, static_cast<std::uint32_t>(load_.queries()) - 1}) {
        CACHALOT_TRY(check(wanted, layer, query));
      }
    }
    return {};
  }

  // Against a softmax in double over the numbers that attention_fill made up.
  Status check(const std::vector<float>& found, std::uint32_t layer, std::uint32_t query) const {
    const auto number = [](std::uint16_t bits) {
      return static_cast<double>(std::bit_cast<float>(std::uint32_t{bits} << 16));
    };
    const std::uint32_t request = query / (load_.kv_heads * kGroup);
    const std::uint32_t head = query / kGroup % load_.kv_heads;
    std::vector<double> weights(load_.tokens);
    for (std::uint32_t token = 0; token < load_.tokens; ++token) {
      double score = 0;
      for (std::uint32_t i = 0; i < kHeadDim; ++i) {
        score += number(query_number(query * kHeadDim + i)) *
                 number(made_up(request, layer, token, 0, head * kHeadDim + i));
      }
      weights[token] = score / std::sqrt(static_cast<double>(kHeadDim));
    }
    const double largest = *std::max_element(weights.begin(), weights.end());
    for (double& weight : weights) weight = std::exp(weight - largest);
    const double all = std::accumulate(weights.begin(), weights.end(), 0.0);
    for (std::uint32_t i = 0; i < kHeadDim; ++i) {
      double wanted = 0;
      for (std::uint32_t token = 0; token < load_.tokens; ++token) {
        wanted +=
            weights[token] / all * number(made_up(request, layer, token, 1, head * kHeadDim + i));
      }
      const double got = found[std::uint64_t{query} * kHeadDim + i];
      // Values are below 1; what is lost is single precision and ex2.approx.
      if (!(std::abs(got - wanted) < 1e-4)) {
        return Error::make(Code::kCorrupt,
                           "attention: query %u, layer %u, number %u is %.7g, expected %.7g", query,
                           layer, i, got, wanted);
      }
    }
    return {};
  }

  Status measure(std::vector<Way>& ways) {
    for (std::uint32_t round = 0; round <= rounds_; ++round) {
      for (std::size_t k = 0; k < ways.size(); ++k) {
        Way& way = ways[(round + k) % ways.size()];
        const std::uint64_t start = now_ns();
        for (std::uint32_t layer = 0; layer < load_.layers; ++layer)
          CACHALOT_TRY(attend(way, layer));
        CACHALOT_TRY(gpu_.synchronize());
        if (round > 0) way.us.push_back(static_cast<double>(now_ns() - start) * 1e-3);
      }
    }
    return {};
  }

  // What the GPU's memory can do: a copy, its bytes counted twice.
  Status measure_memory() {
    const std::uint64_t bytes = std::min<std::uint64_t>(load_.kv_bytes(), std::uint64_t{2} << 30);
    GpuMemory from, to;
    CACHALOT_TRY_ASSIGN(from, gpu_.allocate(bytes));
    CACHALOT_TRY_ASSIGN(to, gpu_.allocate(bytes));
    std::vector<double> rates;
    for (std::uint32_t round = 0; round <= rounds_; ++round) {
      const std::uint64_t start = now_ns();
      CACHALOT_TRY(gpu_.copy(to.at(), from.at(), bytes));
      CACHALOT_TRY(gpu_.synchronize());
      rates.push_back(2.0 * static_cast<double>(bytes) / static_cast<double>(now_ns() - start));
    }
    memory_gb_s_ = median_of(rates);
    return {};
  }

  void add(const std::vector<Way>& ways) {
    double paged = 0, plain = 0;
    for (const Way& way : ways) {
      if (way.name == "paged") paged = median_of(way.us);
      if (way.name == "contiguous/plain") plain = median_of(way.us);
    }
    for (const Way& way : ways) {
      const Spread spread = spread_of(way.us);
      const bool is_paged = way.name == "paged";
      Row row{load_.name() + "/" + way.name, spread.median, "us",
              is_paged ? "" : "the same kernel over pages", is_paged ? 0 : paged};
      add_spread(row, spread);
      row.extras.emplace_back("of_plain", spread.median / plain);
      row.extras.emplace_back("us_per_token", spread.median / load_.requests);
      row.extras.emplace_back("kv_gb_s",
                              static_cast<double>(load_.kv_bytes()) * 1e-3 / spread.median);
      row.extras.emplace_back("memory_gb_s", memory_gb_s_);
      report_.add(std::move(row));
    }
  }

  Report& report_;
  const Gpu& gpu_;
  device_memory::CudaBackend& backend_;
  const std::uint32_t rounds_;
  Load load_{};
  std::uint32_t splits_ = 1;
  gpu::Function contiguous_ = nullptr, paged_ = nullptr, merge_ = nullptr, fill_ = nullptr,
                gather_ = nullptr;
  GpuMemory queries_, partial_, out_, read_;
  std::vector<GpuMemory> tables_;
  double memory_gb_s_ = 0;
};

}  // namespace

Status bench_attention(const Settings& settings, Report& report) {
  const auto gpu = Gpu::open(attention_kernel_image());
  if (!gpu) {
    report.note(std::string("no GPU, nothing measured: ") + gpu.error().message);
    return {};
  }
  CACHALOT_TRY_ASSIGN(const auto backend, device_memory::CudaBackend::open());
  AttentionBench bench(settings, report, **gpu, *backend);
  std::vector<Load> loads = {{1, 32768, 32, 8}, {8, 8192, 32, 8}, {64, 1024, 32, 8}};
  if (settings.quick) loads = {{2, 150, 2, 1}};
  for (const Load& load : loads) CACHALOT_TRY(bench.run(load));
  report.note("on " + (*gpu)->name() +
              ": one decode step of Llama-3-8B's attention, REQUESTSxTOKENS, all layers, in "
              "microseconds; kv_gb_s: keys and values read; memory_gb_s: a copy on the GPU");
  report.note(
      "contiguous: vTensor ranges as they are, and one plain allocation; of_plain: the time beside "
      "that one; paged: pages of 16 tokens by their table; "
      "gathered_pages: copied to contiguous memory first");
  report.note("all ways have the same results, bit by bit");
  return {};
}

}  // namespace cachalot::apps::bench
