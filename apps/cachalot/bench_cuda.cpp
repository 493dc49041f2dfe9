#include "bench_cuda.h"

#include <algorithm>
#include <functional>
#include <string>

#include "bench_cuda_device.h"

namespace cachalot::apps::bench {
namespace {

using kv::Direction;
using kv::Way;

constexpr std::uint32_t kSglangThreadBlocks = 2;  // what its kernels take by default

// A way of copying the blocks of a call, from submitting to the end of the stream.
struct Subject {
  std::string name;
  std::function<Status(std::span<const kv::BlockCopy>)> prepare;  // not measured; may be empty
  std::function<Status(std::span<const kv::BlockCopy>)> copy;
  std::vector<double> us;
};

class CudaBench {
 public:
  CudaBench(const Settings& settings, Report& report, kv::CudaDevice& device)
      : settings_(settings), report_(report), device_(device) {}

  // One table's rows: all ways, in turns. @param every_nth  token of each block; 1: all, as whole blocks
  Status run(const Model& model, std::uint32_t blocks, Direction direction,
             std::uint32_t every_nth = 1) {
    const std::string where =
        std::string(direction == Direction::kGather ? "gather/" : "scatter/") + model.name + "/x" +
        std::to_string(blocks) + (every_nth == 1 ? "" : "/sparse");
    show_progress("cuda: " + where);
    CACHALOT_TRY_ASSIGN(const std::unique_ptr<GpuPages> pages,
                        GpuPages::make(device_, model, blocks));
    const std::unique_ptr<memory::Domain> domain = memory::make_coherent_domain();
    const std::unique_ptr<memory::Domain> flushed = memory::make_noncoherent_domain();
    std::vector<std::unique_ptr<kv::CudaEngine>> engines;
    std::vector<Subject> subjects;
    const auto add_ours = [&](const char* name, Way way, memory::Domain& in) -> Status {
      CACHALOT_TRY_ASSIGN(
          auto engine, kv::CudaEngine::make(device_, pages->cache(), kv::default_block_order(), in,
                                            {.way = way, .stream = pages->stream()}));
      kv::CudaEngine* const used = engine.get();
      engines.push_back(std::move(engine));
      subjects.push_back({name,
                          {},
                          [used, direction](std::span<const kv::BlockCopy> copies) {
                            return direction == Direction::kGather ? used->gather(copies)
                                                                   : used->scatter(copies);
                          },
                          {}});
      return {};
    };
    CACHALOT_TRY(add_ours("threads", Way::kThreads, *domain));
    if (device_.has_bulk_copies()) CACHALOT_TRY(add_ours("bulk", Way::kBulk, *domain));
    CACHALOT_TRY(add_ours("chosen", Way::kChoose, *domain));
    CACHALOT_TRY(add_ours("chosen_flushed", Way::kChoose, *flushed));
    CACHALOT_TRY(add_ours("memcpy_each", Way::kCopyEngine, *domain));
    if (device_.driver().copy_batch != nullptr) {
      subjects.push_back({"memcpy_batch",
                          {},
                          [&](std::span<const kv::BlockCopy> copies) -> Status {
                            CACHALOT_TRY(copy_in_a_batch(*pages, copies, direction));
                            return pages->synchronize();
                          },
                          {}});
    }
    std::unique_ptr<WarpPerToken> warps;
    if (every_nth == 1) {
      CACHALOT_TRY_ASSIGN(warps, WarpPerToken::make(*pages, kSglangThreadBlocks));
      subjects.push_back(
          {"warp_per_token",
           [&](std::span<const kv::BlockCopy> copies) { return warps->prepare(copies); },
           [&](std::span<const kv::BlockCopy>) -> Status {
             CACHALOT_TRY(warps->launch(direction));
             return pages->synchronize();
           },
           {}});
    }
    const std::uint64_t bytes = blocks * model.geometry.block_bytes() / every_nth;
    subjects.push_back(
        {"flat",
         {},
         [&](std::span<const kv::BlockCopy>) { return flat_copy(*pages, bytes, direction); },
         {}});
    CACHALOT_TRY(measure(*pages, subjects, blocks, tokens_of(model, every_nth)));
    add_rows(where, bytes, subjects);
    return {};
  }

 private:
  static std::vector<kv::TokenRange> tokens_of(const Model& model, std::uint32_t every_nth) {
    std::vector<kv::TokenRange> out;
    if (every_nth == 1) return out;
    for (std::uint32_t t = 0; t < model.geometry.block_tokens; t += every_nth)
      out.push_back({t, t + 1});
    return out;
  }

  // As many bytes as the call, in one copy of the driver's: what the way to the pool can do.
  Status flat_copy(const GpuPages& pages, std::uint64_t bytes, Direction direction) {
    const kv::CudaDevice::Entered entered(device_);
    const bool gathers = direction == Direction::kGather;
    const std::uint64_t pool = pages.flat_pool(), engine = pages.flat_engine();
    CACHALOT_TRY(
        device_.check(device_.driver().copy(gathers ? pool : engine, gathers ? engine : pool, bytes,
                                            pages.stream()),
                      "cuMemcpyAsync"));
    return pages.synchronize();
  }

  Status measure(GpuPages& pages, std::vector<Subject>& subjects, std::uint32_t blocks,
                 const std::vector<kv::TokenRange>& tokens) {
    const std::uint32_t repeats = settings_.repeats * 4;
    for (std::uint32_t i = 0; i < repeats + 2; ++i) {  // the first two warm up
      for (std::size_t k = 0; k < subjects.size(); ++k) {
        Subject& subject = subjects[(i + k) % subjects.size()];
        const std::span<const kv::BlockCopy> copies = pages.next(blocks, tokens);
        if (subject.prepare) CACHALOT_TRY(subject.prepare(copies));
        const std::uint64_t start = now_ns();
        CACHALOT_TRY(subject.copy(copies));
        const std::uint64_t ns = now_ns() - start;
        if (i >= 2) subject.us.push_back(static_cast<double>(ns) * 1e-3);
      }
    }
    return {};
  }

  void add_rows(const std::string& where, std::uint64_t bytes,
                const std::vector<Subject>& subjects) {
    const double flat = static_cast<double>(bytes) * 1e-3 / median_of(subjects.back().us);
    for (const Subject& subject : subjects) {
      const double us = median_of(subject.us);
      const bool is_flat = &subject == &subjects.back();
      Row row{where + "/" + subject.name, static_cast<double>(bytes) * 1e-3 / us, "GB/s",
              is_flat ? "" : "one flat copy", is_flat ? 0 : flat};
      row.extras.emplace_back("call_us", us);
      report_.add(std::move(row));
    }
  }

  const Settings& settings_;
  Report& report_;
  kv::CudaDevice& device_;
};

}  // namespace

Status bench_cuda(const Settings& settings, Report& report) {
  const Result<std::unique_ptr<kv::CudaDevice>> device = kv::CudaDevice::open(0);
  if (!device) {
    report.note(std::string("no GPU, nothing measured: ") + device.error().message);
    return {};
  }
  CudaBench bench(settings, report, **device);
  report.note("on " + (*device)->name() +
              "; times from the call to the end of its stream, waiting included");
  for (const Direction direction : {Direction::kGather, Direction::kScatter}) {
    for (const std::uint32_t blocks : {1u, 32u}) {
      CACHALOT_TRY(bench.run(model_of("Qwen3-32B", 16), blocks, direction));
      if (settings.quick) continue;
      CACHALOT_TRY(bench.run(model_of("DeepSeek-V3", 16), blocks, direction));
      CACHALOT_TRY(bench.run(model_of("Qwen3-32B", 16, 8), blocks, direction));
      CACHALOT_TRY(bench.run(synthetic_model(), blocks, direction));
    }
  }
  // Rows of 1,152 bytes: every fourth token of latent blocks.
  return bench.run(model_of("DeepSeek-V3", 64), 16, Direction::kScatter, 4);
}

}  // namespace cachalot::apps::bench
