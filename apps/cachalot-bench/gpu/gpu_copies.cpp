#include "gpu_copies.h"

#include <algorithm>
#include <array>
#include <string>
#include <utility>
#include <vector>

#include "cuda_overlap.h"
#include "cuda_registration.h"
#include "cuda_ways.h"

namespace cachalot::apps::bench {
namespace {

using kv::Direction;
using kv::Way;

constexpr std::uint64_t kKiB = 1024;
constexpr std::array kDirections = {Direction::kGather, Direction::kScatter};

double rate_of(std::uint64_t bytes, double us) {
  return static_cast<double>(bytes) * 1e-3 / us;  // GB/s
}

// What the way to the pool can do: one large copy of the driver's each way.
struct Ceiling {
  double gather = 0, scatter = 0;  // GB/s
  double of(Direction direction) const {
    return direction == Direction::kGather ? gather : scatter;
  }
};

class CudaBench {
 public:
  CudaBench(const Settings& settings, Report& report, kv::CudaDevice& device)
      : settings_(settings), report_(report), device_(device) {}

  Status run() {
    if (settings_.only == "register") return measure_registration(settings_, device_, report_);
    CACHALOT_TRY(ceilings());
    for (const Direction direction : kDirections) CACHALOT_TRY(pieces(direction));
    if (settings_.only == "pieces") return {};
    CACHALOT_TRY(measure_registration(settings_, device_, report_));
    for (const Direction direction : kDirections) {
      CACHALOT_TRY(rate(direction));
      CACHALOT_TRY(one_block(direction));
      CACHALOT_TRY(sizes_and_numbers(direction));
      CACHALOT_TRY(thread_blocks(direction));
      for (const Model& model : models()) {
        for (const std::uint32_t blocks : {1u, settings_.quick ? 2u : 32u}) {
          CACHALOT_TRY(all_ways({model, blocks, direction}));
        }
      }
    }
    CACHALOT_TRY(sparse());
    for (const Direction direction : kDirections) CACHALOT_TRY(overlap(direction));
    for (const Direction direction : kDirections) CACHALOT_TRY(latency(direction));
    return {};
  }

 private:
  Status ceilings() {
    const std::uint64_t bytes = (settings_.quick ? 32 : 256) * kKiB * kKiB;
    for (const Direction direction : kDirections) {
      CACHALOT_TRY_ASSIGN(const FlatTimes times,
                          measure_flat(settings_, device_, direction, bytes));
      const double pool = rate_of(bytes, median_of(times.pool_us));
      (direction == Direction::kGather ? ceiling_.gather : ceiling_.scatter) = pool;
      report_.add({std::string("ceiling/") + direction_name(direction), pool, "GB/s",
                   "one copy as large, page-locked by the driver",
                   rate_of(bytes, median_of(times.page_locked_us))});
    }
    return {};
  }

  // What the copies are meant for: many pieces of one size beside one large copy, by few multiprocessors.
  struct Goal {
    std::uint64_t bytes, number;
    double ratio;  // 0: none
  };
  Status pieces(Direction direction) {
    constexpr std::array kGoals = {Goal{256, 1024, 0},          Goal{256, 65536, 0.5},
                                   Goal{4 * kKiB, 1024, 0.8},   Goal{16 * kKiB, 1024, 0.95},
                                   Goal{32 * kKiB, 1024, 0.97}, Goal{64 * kKiB, 512, 0.97}};
    for (const Goal& goal : kGoals) {
      if (settings_.quick && goal.bytes != 16 * kKiB) continue;
      const std::uint64_t number =
          settings_.quick ? std::min<std::uint64_t>(goal.number, 256) : goal.number;
      CACHALOT_TRY_ASSIGN(const CudaCall call, call_of_fragments(goal.bytes, number, direction));
      const std::string name = std::string("pieces/") + direction_name(direction) + "/" +
                               std::to_string(goal.bytes) + "B/x" +
                               std::to_string(call.bytes() / goal.bytes);
      show_progress("cuda: " + name);
      std::vector<kv::CudaOptions> options = {{.way = Way::kChoose}};
      std::vector<std::string> names = {"chosen"};
      for (const Way way : {Way::kThreads, Way::kBulk}) {
        if (way == Way::kBulk && !device_.has_bulk_copies()) continue;
        for (const std::uint32_t blocks : settings_.quick
                                              ? std::vector<std::uint32_t>{8}
                                              : std::vector<std::uint32_t>{2, 4, 8, 16}) {
          options.push_back({.way = way, .thread_blocks = blocks});
          names.push_back((way == Way::kBulk ? "bulk/" : "threads/") + std::to_string(blocks));
        }
      }
      if (device_.has_batched_copies()) {
        for (const std::uint32_t batch : {64u, 256u, 1024u}) {
          options.push_back({.way = Way::kBatch, .batch_copies = batch});
          names.push_back("batch/" + std::to_string(batch));
        }
      }
      CACHALOT_TRY_ASSIGN(const auto measured, measure_options(settings_, device_, call, options));
      names.emplace_back("flat");
      for (std::size_t i = 0; i < names.size(); ++i) {
        Row row{name + "/" + names[i], rate_of(call.bytes(), measured[i].median_us()), "GB/s",
                "one large copy", ceiling_.of(direction)};
        if (i == 0 && goal.ratio != 0 && !settings_.quick) row.target = ratio_at_least(goal.ratio);
        row.extras.emplace_back("call_us", measured[i].median_us());
        report_.add(std::move(row));
      }
    }
    return {};
  }

  // Fragments of 20 KB, many at once.
  Status rate(Direction direction) {
    const CudaCall call{synthetic_model(), settings_.quick ? 2u : 32u, direction};
    CACHALOT_TRY_ASSIGN(const auto ways, measure_ways(settings_, device_, call));
    for (const Measured& way : ways) {
      Row row{"rate/" + call.name() + "/" + way.way, rate_of(call.bytes(), way.median_us()), "GB/s",
              "one large copy", ceiling_.of(direction)};
      // A quick call is so short that its launch counts.
      if (way.way == "chosen" && !settings_.quick) row.target = ratio_at_least(0.9);
      row.extras.emplace_back("call_us", way.median_us());
      report_.add(std::move(row));
    }
    return {};
  }

  // 2.6 MB in 128 pieces beside 2.6 MB in one.
  Status one_block(Direction direction) {
    const CudaCall call{synthetic_model(), 1, direction};
    CACHALOT_TRY_ASSIGN(const auto ways, measure_ways(settings_, device_, call));
    const double flat = ways.back().median_us();
    for (const Measured& way : ways) {
      if (way.way == "flat") continue;
      Row row{"block/" + call.name() + "/" + way.way, way.median_us(), "us", "one copy of its size",
              flat};
      if (way.way == "chosen") row.target = ratio_at_most(1.2);
      add_spread(row, spread_of(way.us));
      report_.add(std::move(row));
    }
    return {};
  }

  // Which way wins at which size and number; the table of kv/cuda/way.h is made of these rows.
  Status sizes_and_numbers(Direction direction) {
    for (std::uint64_t bytes = kKiB; bytes <= 1024 * kKiB; bytes *= settings_.quick ? 32 : 2) {
      CACHALOT_TRY(fragments(direction, bytes, settings_.quick ? 256 : 4096));
    }
    for (const std::uint64_t number : {16u, 64u, 256u}) {
      for (const std::uint64_t kib : {1u, 8u, 28u, 32u}) {  // one of each row of the table
        if (settings_.quick && (kib != 28 || number != 16)) continue;
        CACHALOT_TRY(fragments(direction, kib * kKiB, number));
      }
    }
    return {};
  }

  Status fragments(Direction direction, std::uint64_t bytes, std::uint64_t most) {
    CACHALOT_TRY_ASSIGN(const CudaCall call, call_of_fragments(bytes, most, direction));
    CACHALOT_TRY_ASSIGN(const auto ways, measure_ways(settings_, device_, call));
    const std::string name = std::string("fragments/") + direction_name(direction) + "/" +
                             std::to_string(bytes / kKiB) + "KiB/x" +
                             std::to_string(call.bytes() / bytes) + "/";
    const Measured* best = nullptr;
    for (const Measured& way : ways) {
      Row row{name + way.way, rate_of(call.bytes(), way.median_us()), "GB/s", "one large copy",
              ceiling_.of(direction)};
      row.extras.emplace_back("call_us", way.median_us());
      report_.add(std::move(row));
      const bool is_ours = way.way == "threads" || way.way == "bulk" || way.way == "batch" ||
                           way.way == "memcpy_each";
      if (is_ours && (best == nullptr || way.median_us() < best->median_us())) best = &way;
    }
    const Measured* const chosen = find_way(ways, "chosen");
    report_.add({name + "choice", chosen->median_us(), "us", "the best of ours: " + best->way,
                 best->median_us(), ratio_at_most(1.1)});
    return {};
  }

  // At most 32 MiB in fragments of one size, and no more than `most_fragments`: some ways pay for each.
  Result<CudaCall> call_of_fragments(std::uint64_t bytes, std::uint64_t most_fragments,
                                     Direction direction) const {
    constexpr std::uint64_t kMostInBlock = 128;
    const std::uint64_t most_bytes = (settings_.quick ? 2 : 32) * kKiB * kKiB;
    geometry::KvGeometry g;
    g.block_tokens = bytes < kKiB ? 4 : 16;
    g.head_dim = 32;
    g.kv_heads = static_cast<std::uint32_t>(bytes / (g.block_tokens * 32 * 2));
    const std::uint64_t fragments = std::min(most_fragments, most_bytes / bytes);
    const std::uint64_t in_block = std::min(kMostInBlock, fragments);
    g.layers = static_cast<std::uint32_t>(in_block / 2);
    CACHALOT_TRY(g.check());
    return CudaCall{{"fragments", g, "vllm_kbnhc"},
                    static_cast<std::uint32_t>(fragments / in_block),
                    direction};
  }

  // How many multiprocessors a rate takes.
  Status thread_blocks(Direction direction) {
    const CudaCall call{synthetic_model(), settings_.quick ? 2u : 32u, direction};
    show_progress("cuda: thread blocks, " + call.name());
    std::vector<Way> ways = {Way::kThreads};
    if (device_.has_bulk_copies()) ways.push_back(Way::kBulk);
    std::vector<kv::CudaOptions> options;
    std::vector<std::string> names;
    for (const Way way : ways) {
      for (const std::uint32_t blocks : thread_block_counts()) {
        options.push_back({.way = way, .thread_blocks = blocks});
        names.push_back(std::string(way == Way::kBulk ? "bulk" : "threads") + "/" +
                        std::to_string(blocks));
      }
    }
    CACHALOT_TRY_ASSIGN(const auto measured, measure_options(settings_, device_, call, options));
    for (std::size_t i = 0; i < names.size(); ++i) {
      report_.add({std::string("thread_blocks/") + direction_name(direction) + "/" + names[i],
                   rate_of(call.bytes(), measured[i].median_us()), "GB/s", "one large copy",
                   ceiling_.of(direction)});
    }
    return {};
  }

  std::vector<std::uint32_t> thread_block_counts() const {
    if (settings_.quick) return {1, 8};
    return {1, 2, 4, 8, 16, 32};
  }
  std::vector<Model> models() const {
    if (settings_.quick) return {model_of("Qwen3-32B", 16)};
    return {model_of("Qwen3-32B", 16), model_of("DeepSeek-V3", 16), model_of("Qwen3-32B", 16, 8)};
  }

  Status all_ways(const CudaCall& call) {
    CACHALOT_TRY_ASSIGN(const auto ways, measure_ways(settings_, device_, call));
    const double flat = rate_of(call.bytes(), ways.back().median_us());
    for (const Measured& way : ways) {
      const bool is_flat = &way == &ways.back();
      Row row{call.name() + "/" + way.way, rate_of(call.bytes(), way.median_us()), "GB/s",
              is_flat ? "" : "one flat copy", is_flat ? 0 : flat};
      row.extras.emplace_back("call_us", way.median_us());
      report_.add(std::move(row));
    }
    return {};
  }

  // 16 tokens of a block of 128, in 64 layers, K and V: 2,048 rows of 160 bytes; and rows of 1,152
  // bytes, every fourth token of latent blocks.
  Status sparse() {
    geometry::KvGeometry g;
    g.layers = 64;
    g.kv_heads = 1;
    g.head_dim = 80;
    g.block_tokens = 128;
    const CudaCall rows{{"2048x160B", g, "vllm_kbnhc"}, 1, Direction::kScatter, 8};
    CACHALOT_TRY_ASSIGN(const auto ways, measure_ways(settings_, device_, rows));
    const Measured* const each = find_way(ways, "memcpy_each");
    for (const Measured& way : ways) {
      if (&way == each) continue;
      Row row{"sparse/" + rows.model.name + "/" + way.way, way.median_us(), "us",
              "a copy of the driver's for each", each->median_us()};
      if (way.way == "chosen") row.target = ratio_at_most(0.1);
      add_spread(row, spread_of(way.us));
      report_.add(std::move(row));
    }
    return settings_.quick ? Status()
                           : all_ways({model_of("DeepSeek-V3", 64), 16, Direction::kScatter, 4});
  }

  // An engine's kernels, with and without copies beside them.
  Status overlap(Direction direction) {
    std::vector<std::pair<Way, const char*>> ways = {{Way::kChoose, "/chosen"},
                                                     {Way::kThreads, "/threads"}};
    if (device_.has_batched_copies()) ways.emplace_back(Way::kBatch, "/batch");
    for (const Compute compute : {Compute::kMath, Compute::kMemory, Compute::kWhole}) {
      for (const auto& [way, name] : ways) {
        show_progress("cuda: overlap");
        CACHALOT_TRY_ASSIGN(const OverlapTimes times,
                            measure_overlap(settings_, device_, direction, compute, way));
        Row row{std::string("overlap/") + direction_name(direction) + "/" + compute_name(compute) +
                    name,
                median_of(times.beside_ms), "ms", "the same kernel alone",
                median_of(times.alone_ms)};
        // The quick kernel's memory fits a GPU's cache, and its two waves are three beside anything.
        const bool is_real = compute == Compute::kMath || !settings_.quick;
        if (way == Way::kChoose && is_real) row.target = ratio_at_most(1.02);
        row.extras.emplace_back("copy_gb_s", times.copy_gb_s);
        row.extras.emplace_back("copy_alone_gb_s", times.copy_alone_gb_s);
        row.extras.emplace_back("ceiling_gb_s", ceiling_.of(direction));
        report_.add(std::move(row));
      }
    }
    return {};
  }

  // One block beside a kernel that fills the GPU: how long it waits to begin.
  Status latency(Direction direction) {
    for (const Compute compute : {Compute::kMath, Compute::kWhole}) {
      for (const Way way : {Way::kChoose, Way::kThreads, Way::kCopyEngine}) {
        show_progress("cuda: latency");
        CACHALOT_TRY_ASSIGN(const LatencyTimes times,
                            measure_latency(settings_, device_, direction, compute, way));
        const char* const by = way == Way::kChoose    ? "/chosen"
                               : way == Way::kThreads ? "/threads"
                                                      : "/memcpy_each";
        Row row{
            std::string("latency/") + direction_name(direction) + "/" + compute_name(compute) + by,
            median_of(times.beside_us), "us", "the same call alone", median_of(times.alone_us)};
        add_spread(row, spread_of(times.beside_us));
        if (way == Way::kChoose && !settings_.quick) row.target = ratio_at_most(2);
        row.extras.emplace_back("longest_us",
                                *std::max_element(times.beside_us.begin(), times.beside_us.end()));
        report_.add(std::move(row));
      }
    }
    return {};
  }

  const Settings& settings_;
  Report& report_;
  kv::CudaDevice& device_;
  Ceiling ceiling_;
};

// @param kernels  instead of the library's; empty: those
Result<std::unique_ptr<kv::CudaDevice>> open_device(const std::vector<unsigned char>& kernels) {
  if (kernels.empty()) return kv::CudaDevice::open(0);
  CACHALOT_TRY_ASSIGN(const gpu::Driver driver, gpu::load_driver());
  return kv::CudaDevice::open(driver, kernels, 0);
}

}  // namespace

Status bench_cuda(const Settings& settings, Report& report) {
  const Result<std::unique_ptr<kv::CudaDevice>> device = open_device(settings.kernels);
  if (!device) {
    // Kernels that were asked for and cannot be loaded are an error.
    if (!settings.kernels.empty()) return device.error();
    report.note(std::string("no GPU, nothing measured: ") + device.error().message);
    return {};
  }
  const auto blocks = [&](kv::Way way) {
    return std::to_string(kv::default_thread_blocks(way, (*device)->multiprocessors()));
  };
  report.note("on " + (*device)->name() + ", by " + blocks(kv::Way::kBulk) +
              " thread blocks in bulk and " + blocks(kv::Way::kThreads) +
              " by threads unless a row says otherwise; times from the call to the end of its "
              "stream, waiting included");
  if (!settings.kernels.empty()) report.note("the kernels are those of --kernels");
  report.note("overlap: copy_gb_s beside the kernel, copy_alone_gb_s without it");
  return CudaBench(settings, report, **device).run();
}

}  // namespace cachalot::apps::bench
