#include "vmm.h"

#include <algorithm>
#include <array>
#include <cinttypes>
#include <cstdio>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/rng.h"
#include "device_memory/handle_pool.h"
#include "device_memory/memfd/memfd_backend.h"
#include "device_memory/model/model_backend.h"
#include "os/memory.h"
#include "vmm_cuda.h"
#include "vmm_work.h"

namespace cachalot::apps::bench {
namespace {

constexpr std::uint64_t kMiB = std::uint64_t{1} << 20;
constexpr std::uint64_t kBytes = 2048 * kMiB;

struct Size {
  const char* name;
  std::uint64_t bytes;
  double gmlake;  // GMLake, Table 1: times one cuMemAlloc of 2 GiB, A100
};
constexpr std::array kSizes = {Size{"2MiB", 2 * kMiB, 115.4}, Size{"128MiB", 128 * kMiB, 9.1},
                               Size{"1GiB", 1024 * kMiB, 1.5}};

void add_split(Row& row, const BuildTimes& times) {
  row.extras.emplace_back("reserve_ms", times.reserve * 1e-6);
  row.extras.emplace_back("create_ms", times.create * 1e-6);
  row.extras.emplace_back("map_ms", times.map * 1e-6);
  row.extras.emplace_back("set_access_ms", times.set_access * 1e-6);
}

double handles_of(const Size& size) {
  const std::uint64_t handles = kBytes / size.bytes;
  return static_cast<double>(handles);
}

// Samples of one size, nanoseconds for 2 GiB.
struct Samples {
  std::vector<double> total, wiring, reserve, create, map, set_access, touch;
  std::vector<double> access_each, unmap_each, unmap_once, alias_touch;
};

// --- CPU memory

class CpuBench {
 public:
  CpuBench(const Settings& settings, Report& report, device_memory::MemfdBackend& backend)
      : report_(report),
        backend_(backend),
        source_(device_memory::page_source_name(backend.page_source())),
        has_huge_pages_(backend.page_mode() != os::PageMode::kSmall),
        rounds_(settings.quick ? 2 : std::min(settings.repeats, 5u)) {}

  Status run() {
    // In a virtual machine the first to touch memory waits for the host.
    CACHALOT_TRY(plain_mapping(kBytes, has_huge_pages_));
    for (std::uint32_t round = 0; round < rounds_; ++round) {
      show_progress(std::string("vmm: ") + source_);
      CACHALOT_TRY_ASSIGN(const PlainMapping plain, plain_mapping(kBytes, has_huge_pages_));
      plain_map_.push_back(plain.map_ns);
      plain_touched_.push_back(plain.map_ns + plain.touch_ns);
      for (std::size_t k = 0; k < kSizes.size(); ++k) {
        const std::size_t size = (round + k) % kSizes.size();
        CACHALOT_TRY(measure(kSizes[size], &samples_[size]));
      }
    }
    for (std::size_t size = 0; size < kSizes.size(); ++size) add(kSizes[size], samples_[size]);
    CACHALOT_TRY(measure_pool());
    report_.note(std::string(source_) + ": " + backend_.description() + "; found: pages " +
                 os::page_mode_name(backend_.page_mode()));
    return {};
  }

 private:
  Status measure(const Size& size, Samples* out) {
    Stitched built(backend_, kBytes, size.bytes);
    CACHALOT_TRY_ASSIGN(const double reserve, built.reserve());
    CACHALOT_TRY_ASSIGN(const double create, built.create());
    CACHALOT_TRY_ASSIGN(const double map, built.map());
    CACHALOT_TRY_ASSIGN(const double access, built.set_access(kBytes));
    const double touch = built.touch();
    out->reserve.push_back(reserve);
    out->create.push_back(create);
    out->map.push_back(map);
    out->set_access.push_back(access);
    out->touch.push_back(touch);
    out->total.push_back(reserve + create + map + access + touch);
    return measure_alias(size, built, out);
  }

  // The same memory at a second place: what a stitch costs.
  Status measure_alias(const Size& size, const Stitched& built, Samples* out) {
    Stitched alias(backend_, kBytes, size.bytes);
    CACHALOT_TRY_ASSIGN(const double reserve, alias.reserve());
    alias.use(built.handles());
    CACHALOT_TRY_ASSIGN(const double map, alias.map());
    CACHALOT_TRY_ASSIGN(const double access, alias.set_access(kBytes));
    out->wiring.push_back(reserve + map + access);
    out->alias_touch.push_back(alias.touch());
    CACHALOT_TRY_ASSIGN(const double once, alias.unmap(kBytes));
    out->unmap_once.push_back(once);
    CACHALOT_TRY(alias.map());
    CACHALOT_TRY_ASSIGN(const double access_each, alias.set_access(size.bytes));
    out->access_each.push_back(access_each);
    alias.touch();
    CACHALOT_TRY_ASSIGN(const double each, alias.unmap(size.bytes));
    out->unmap_each.push_back(each);
    return {};
  }

  void add(const Size& size, const Samples& samples) {
    const Spread total = spread_of(samples.total);
    Row build{"build/" + name(size), total.median * 1e-6, "ms",
              has_huge_pages_ ? "one mmap of 2 GiB, populated in huge pages"
                              : "one mmap of 2 GiB, populated in 4 KiB pages",
              median_of(plain_touched_) * 1e-6};
    add_spread(build, {total.median * 1e-6, total.low * 1e-6, total.high * 1e-6});
    add_split(build, {.reserve = median_of(samples.reserve),
                      .create = median_of(samples.create),
                      .map = median_of(samples.map),
                      .set_access = median_of(samples.set_access)});
    build.extras.emplace_back("touch_ms", median_of(samples.touch) * 1e-6);
    build.extras.emplace_back("unpopulated_mmap_ms", median_of(plain_map_) * 1e-6);
    report_.add(std::move(build));

    const double chunks = handles_of(size);
    Row stitch{"stitch/" + name(size), median_of(samples.wiring) * 1e-3, "us",
               "one mmap of 2 GiB, nothing populated", median_of(plain_map_) * 1e-3};
    stitch.extras.emplace_back("per_handle_us", median_of(samples.wiring) * 1e-3 / chunks);
    stitch.extras.emplace_back("touch_per_handle_us",
                               median_of(samples.alias_touch) * 1e-3 / chunks);
    report_.add(std::move(stitch));
    if (size.bytes > kSizes.front().bytes) return;
    report_.add(per_handle("set_access_each/", size, samples.access_each, "one call for the range",
                           samples.set_access));
    report_.add(per_handle("unmap_each/", size, samples.unmap_each, "one call for the range",
                           samples.unmap_once));
  }

  Row per_handle(const char* what, const Size& size, const std::vector<double>& ns,
                 const char* baseline, const std::vector<double>& baseline_ns) const {
    const double scale = 1e-3 / handles_of(size);
    return {what + name(size), median_of(ns) * scale, "us", baseline,
            median_of(baseline_ns) * scale};
  }

  // A handle that is ready, beside one that is created.
  Status measure_pool() {
    constexpr std::uint64_t kHandles = 64;
    CACHALOT_TRY_ASSIGN(
        const auto pool,
        device_memory::HandlePool::start(backend_, {.low_handles = 0, .high_handles = kHandles}));
    std::vector<double> take, create;
    for (std::uint32_t round = 0; round < rounds_; ++round) {
      CACHALOT_TRY_ASSIGN(const double taken, take_from(*pool, kHandles));
      take.push_back(taken / kHandles);
      Stitched created(backend_, kHandles * 2 * kMiB, 2 * kMiB);
      CACHALOT_TRY_ASSIGN(const double ns, created.create());
      create.push_back(ns / kHandles);
    }
    report_.add({std::string("take/") + source_ + "/2MiB", median_of(take) * 1e-3, "us", "a create",
                 median_of(create) * 1e-3});
    return {};
  }

  std::string name(const Size& size) const { return std::string(source_) + "/" + size.name; }

  Report& report_;
  device_memory::MemfdBackend& backend_;
  const char* source_;
  const bool has_huge_pages_;
  const std::uint32_t rounds_;
  std::vector<double> plain_map_, plain_touched_;
  std::array<Samples, kSizes.size()> samples_;
};

Status run_cpu(const Settings& settings, Report& report, device_memory::PageSource source) {
  // Once for the handles and once for the plain mapping, but not at the same time.
  const os::AvailableMemory available = os::available_memory();
  const device_memory::PageStoreOptions options{.source = source, .tmpfs_directory = "/dev/shm"};
  if (available.bytes < kBytes + options.spare_bytes) {
    char text[160];
    std::snprintf(text, sizeof text,
                  "%s: left out: 2 GiB and 128 MiB to spare wanted, %.80s has %" PRIu64 " MiB",
                  device_memory::page_source_name(source), available.limited_by.c_str(),
                  available.bytes / kMiB);
    report.note(text);
    return {};
  }
  const auto backend = device_memory::MemfdBackend::open(options);
  if (!backend) {
    report.note(std::string(device_memory::page_source_name(source)) +
                ": left out: " + backend.error().message);
    return {};
  }
  if (source == device_memory::PageSource::kHugetlb &&
      device_memory::free_hugetlb_bytes() < kBytes) {
    report.note("hugetlb: left out: less than 2 GiB of reserved pages free");
    return {};
  }
  return CpuBench(settings, report, **backend).run();
}

// --- the model: what a GPU's driver would take

Result<double> charged(device_memory::ModelBackend& model, Result<double> step,
                       std::uint64_t* before) {
  if (!step) return step;
  const std::uint64_t now = model.charged_ns();
  return static_cast<double>(now - std::exchange(*before, now));
}

// 2 GiB from handles of one size.
Result<BuildTimes> model_build(const device_memory::CostTable& costs, std::uint64_t handle_bytes,
                               std::uint64_t access_bytes) {
  CACHALOT_TRY_ASSIGN(const auto model, device_memory::ModelBackend::open({.costs = costs}));
  Stitched built(*model, kBytes, handle_bytes);
  std::uint64_t before = 0;
  BuildTimes times;
  CACHALOT_TRY_ASSIGN(times.reserve, charged(*model, built.reserve(), &before));
  CACHALOT_TRY_ASSIGN(times.create, charged(*model, built.create(), &before));
  CACHALOT_TRY_ASSIGN(times.map, charged(*model, built.map(), &before));
  CACHALOT_TRY_ASSIGN(times.set_access, charged(*model, built.set_access(access_bytes), &before));
  return times;
}

// With one set_access a handle, as the published figures.
Status run_model(Report& report, const device_memory::CostTable& costs, const Size& size) {
  CACHALOT_TRY_ASSIGN(const BuildTimes times, model_build(costs, size.bytes, size.bytes));
  const std::string name = std::string("model/") + costs.name + "/" + size.name;
  // GMLake alone gives the sum, in units of its own.
  const bool is_gmlake = std::string_view(costs.name) == "gmlake_table1";
  Row row = is_gmlake ? Row{name, times.total() / device_memory::kGmlakeUnitNs, "x",
                            "GMLake, Table 1, A100", size.gmlake}
                      : Row{name, times.total() * 1e-6, "ms", "", 0};
  add_split(row, times);
  report.add(std::move(row));
  return {};
}

// What one set_access of all of it would save, if it cost no more than that of one handle as large.
Status run_model_span(Report& report, device_memory::CostTable costs) {
  constexpr std::uint64_t kHandle = kSizes.front().bytes;
  CACHALOT_TRY_ASSIGN(const BuildTimes each, model_build(costs, kHandle, kHandle));
  costs.spanning = device_memory::Spanning::kByBytes;
  CACHALOT_TRY_ASSIGN(const BuildTimes once, model_build(costs, kHandle, kBytes));
  Row row{std::string("model_best_span/") + costs.name + "/2MiB", once.total() * 1e-6, "ms",
          "one set_access a handle", each.total() * 1e-6};
  add_split(row, once);
  report.add(std::move(row));
  return {};
}

// How fast the model itself is: mapping and unmapping in the middle of 256 Ki mappings.
Status run_model_speed(const Settings& settings, Report& report) {
  CACHALOT_TRY_ASSIGN(const auto model, device_memory::ModelBackend::open());
  constexpr std::uint64_t kRanges = 1024, kChunks = 256, kHandle = 2 * kMiB;
  CACHALOT_TRY_ASSIGN(const device_memory::Handle handle, model->create(kHandle));
  std::vector<device_memory::Address> ranges;
  for (std::uint64_t i = 0; i < kRanges; ++i) {
    CACHALOT_TRY_ASSIGN(const device_memory::Address range, model->reserve(kChunks * kHandle));
    for (std::uint64_t k = 0; k < kChunks; ++k)
      CACHALOT_TRY(model->map(range + k * kHandle, handle));
    ranges.push_back(range);
  }
  base::Rng rng(1);
  RateMeter meter(10'000);
  meter.start();
  for (std::uint32_t i = 0; i < settings.repeats * 20'000; ++i) {
    const device_memory::Address at = ranges[rng.below(kRanges)] + rng.below(kChunks) * kHandle;
    CACHALOT_TRY(model->unmap(at, kHandle));
    CACHALOT_TRY(model->map(at, handle));
    meter.count(2);
  }
  report.add({"model/call", 1e3 / median_of(meter.samples()), "ns", "", 0});
  return {};
}

}  // namespace

namespace {

// The rows that need no GPU.
Status bench_host(const Settings& settings, Report& report) {
  take_cores();
  for (const device_memory::CostTable& costs : device_memory::cost_tables()) {
    for (const Size& size : kSizes) CACHALOT_TRY(run_model(report, costs, size));
    CACHALOT_TRY(run_model_span(report, costs));
  }
  CACHALOT_TRY(run_model_speed(settings, report));
  for (const device_memory::PageSource source :
       {device_memory::PageSource::kHugetlb, device_memory::PageSource::kTmpfs,
        device_memory::PageSource::kCollapse, device_memory::PageSource::kSmall}) {
    CACHALOT_TRY(run_cpu(settings, report, source));
  }
  release_cores();  // handles are created by another thread
  return {};
}

}  // namespace

Status bench_vmm(const Settings& settings, Report& report) {
  if (settings.only != "cuda") CACHALOT_TRY(bench_host(settings, report));
  CACHALOT_TRY(bench_vmm_cuda(settings, report));
  report.note("build: reserve, create, map, one set_access and a touch of every page of 2 GiB");
  report.note("stitch: reserve, map and set_access of memory that exists: a second place for it");
  report.note(
      "model: what published costs of an A100 add up to; x: GMLake's unit, taken for 402 us");
  return {};
}

}  // namespace cachalot::apps::bench
