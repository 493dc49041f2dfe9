#include "vmm_cuda.h"

#include <algorithm>
#include <array>
#include <string>

#include "device_memory/cuda/cuda_backend.h"
#include "device_memory/handle_pool.h"
#include "device_memory/model/costs.h"
#include "gpu/device_scope.h"
#include "vmm_work.h"

namespace cachalot::apps::bench {
namespace {

constexpr std::uint64_t kBytes = std::uint64_t{2} << 30;

struct Size {
  const char* name;
  std::uint64_t bytes;
  double gmlake;  // GMLake, Table 1: times one cuMemAlloc of 2 GiB, A100
};
constexpr std::array kSizes = {Size{"2MiB", device_memory::CostTable::kBytes[0], 115.4},
                               Size{"128MiB", device_memory::CostTable::kBytes[1], 9.1},
                               Size{"1GiB", device_memory::CostTable::kBytes[2], 1.5}};

// Nanoseconds for 2 GiB, of each round.
struct Samples {
  std::vector<double> reserve, create, map, access_once, access_each, unmap_once, unmap_each,
      release, stitch, total;
};

template <class Call>
Result<double> timed(Call&& call) {
  const std::uint64_t start = now_ns();
  CACHALOT_TRY(call());
  return static_cast<double>(now_ns() - start);
}

class GpuVmmBench {
 public:
  GpuVmmBench(const Settings& settings, Report& report, const gpu::Driver& driver,
              device_memory::CudaBackend& backend)
      : report_(report),
        driver_(driver),
        backend_(backend),
        rounds_(settings.quick ? 3 : std::min(settings.repeats, 7u)) {}
  ~GpuVmmBench() {
    if (context_ != nullptr) driver_.primary_context_release(device_);
  }
  GpuVmmBench(const GpuVmmBench&) = delete;
  GpuVmmBench& operator=(const GpuVmmBench&) = delete;

  Status run() {
    CACHALOT_TRY(check(driver_.device_get(&device_, 0), "cuDeviceGet"));
    CACHALOT_TRY(
        check(driver_.primary_context_retain(&context_, device_), "cuDevicePrimaryCtxRetain"));
    for (std::uint32_t round = 0; round <= rounds_; ++round) {
      show_progress("vmm: cuda");
      CACHALOT_TRY(measure_alloc());
      for (std::size_t i = 0; i < kSizes.size(); ++i) {
        const std::size_t size = (round + i) % kSizes.size();
        CACHALOT_TRY(measure(kSizes[size], samples_[size]));
      }
      if (round > 0) continue;  // the first warms up
      alloc_.clear();
      for (Samples& samples : samples_) samples = {};
    }
    for (std::size_t size = 0; size < kSizes.size(); ++size) add(kSizes[size], samples_[size]);
    CACHALOT_TRY(measure_pool());
    report_.note("cuda: " + backend_.description());
    return {};
  }

 private:
  Status check(int result, const char* call) const {
    if (result == gpu::kSuccess) return {};
    return gpu::driver_error(driver_, result, call);
  }

  // The common baseline: the same memory by one call.
  Status measure_alloc() {
    const gpu::DeviceScope scope(driver_, context_);
    CACHALOT_TRY(scope.status());
    gpu::DevicePointer at = 0;
    CACHALOT_TRY_ASSIGN(const double ns, timed([&]() -> Status {
                          return check(driver_.memory_allocate(&at, kBytes), "cuMemAlloc");
                        }));
    alloc_.push_back(ns);
    return check(driver_.memory_free(at), "cuMemFree");
  }

  Status measure(const Size& size, Samples& out) {
    Stitched built(backend_, kBytes, size.bytes);
    CACHALOT_TRY_ASSIGN(const double reserve, built.reserve());
    CACHALOT_TRY_ASSIGN(const double create, built.create());
    CACHALOT_TRY_ASSIGN(const double map, built.map());
    CACHALOT_TRY_ASSIGN(const double access, built.set_access(kBytes));
    out.reserve.push_back(reserve);
    out.create.push_back(create);
    out.map.push_back(map);
    out.access_once.push_back(access);
    out.total.push_back(reserve + create + map + access);
    CACHALOT_TRY(measure_alias(size, built, out));
    CACHALOT_TRY_ASSIGN(const double release, built.release());
    out.release.push_back(release);
    return {};
  }

  // The same memory at a second place: what a stitch costs; and every call by itself.
  Status measure_alias(const Size& size, const Stitched& built, Samples& out) {
    Stitched alias(backend_, kBytes, size.bytes);
    CACHALOT_TRY_ASSIGN(const double reserve, alias.reserve());
    alias.use(built.handles());
    CACHALOT_TRY_ASSIGN(const double map, alias.map());
    CACHALOT_TRY_ASSIGN(const double access, alias.set_access(kBytes));
    out.stitch.push_back(reserve + map + access);
    CACHALOT_TRY_ASSIGN(const double unmap_once, alias.unmap(kBytes));
    out.unmap_once.push_back(unmap_once);
    CACHALOT_TRY(alias.map());
    CACHALOT_TRY_ASSIGN(const double access_each, alias.set_access(size.bytes));
    out.access_each.push_back(access_each);
    CACHALOT_TRY_ASSIGN(const double unmap_each, alias.unmap(size.bytes));
    out.unmap_each.push_back(unmap_each);
    return {};
  }

  void add(const Size& size, const Samples& samples) {
    const double alloc = median_of(alloc_);
    const Spread total = spread_of(samples.total);
    Row build{std::string("build/cuda/") + size.name, total.median * 1e-6, "ms",
              "one cuMemAlloc of 2 GiB", alloc * 1e-6};
    add_spread(build, {total.median * 1e-6, total.low * 1e-6, total.high * 1e-6});
    build.extras.emplace_back("published_ratio", size.gmlake);
    report_.add(std::move(build));
    const double handles = static_cast<double>(kBytes / size.bytes);
    report_.add({std::string("stitch/cuda/") + size.name,
                 median_of(samples.stitch) * 1e-3 / handles, "us", "a create of the handle",
                 median_of(samples.create) * 1e-3 / handles});
    add_call(size, "create", samples.create, &device_memory::CallCosts::create);
    add_call(size, "map", samples.map, &device_memory::CallCosts::map);
    add_call(size, "set_access_each", samples.access_each, &device_memory::CallCosts::set_access);
    add_call(size, "set_access_once", samples.access_once, &device_memory::CallCosts::set_access);
    add_call(size, "unmap_each", samples.unmap_each, &device_memory::CallCosts::unmap);
    add_call(size, "unmap_once", samples.unmap_once, &device_memory::CallCosts::unmap);
    add_call(size, "release", samples.release, &device_memory::CallCosts::release);
    const device_memory::CostTable& published =
        *device_memory::find_cost_table("vattention_table3");
    report_.add({std::string("call/reserve/") + size.name, median_of(samples.reserve) * 1e-3, "us",
                 published.source, published.at[0].reserve * 1e-3});
  }

  // Of one handle. Two publications measured 2 MiB; their figures for other sizes are grown from it.
  void add_call(const Size& size, const char* call, const std::vector<double>& ns,
                double device_memory::CallCosts::*cost) {
    const double handles = static_cast<double>(kBytes / size.bytes);
    const device_memory::CostTable& vattention =
        *device_memory::find_cost_table("vattention_table3");
    const device_memory::CostTable& kvcached = *device_memory::find_cost_table("kvcached_bench");
    Row row{std::string("call/") + call + "/" + size.name, median_of(ns) * 1e-3 / handles, "us",
            vattention.source, device_memory::interpolate(vattention, cost, size.bytes) * 1e-3};
    row.extras.emplace_back("kvcached_us",
                            device_memory::interpolate(kvcached, cost, size.bytes) * 1e-3);
    report_.add(std::move(row));
  }

  // A handle that is ready, beside one that is created.
  Status measure_pool() {
    constexpr std::uint64_t kHandles = 64;
    CACHALOT_TRY_ASSIGN(
        const auto pool,
        device_memory::HandlePool::start(backend_, {.low_handles = 0, .high_handles = kHandles}));
    std::vector<double> take;
    for (std::uint32_t round = 0; round < rounds_; ++round) {
      CACHALOT_TRY_ASSIGN(const double ns, take_from(*pool, kHandles));
      take.push_back(ns / kHandles);
    }
    report_.add({"take/cuda/2MiB", median_of(take) * 1e-3, "us", "a create",
                 median_of(samples_[0].create) * 1e-3 / static_cast<double>(kBytes >> 21)});
    return measure_beside_creates();
  }

  // Whether a map waits for a create of another thread: kvcached saw one lock for the whole process.
  Status measure_beside_creates() {
    constexpr std::uint64_t kHandles = 64, kCreated = 1024;
    std::vector<double> quiet, beside;
    Stitched place(backend_, kHandles * kSizes[0].bytes, kSizes[0].bytes);
    CACHALOT_TRY(place.reserve());
    CACHALOT_TRY(place.create());
    for (std::uint32_t round = 0; round < rounds_; ++round) {
      CACHALOT_TRY_ASSIGN(const double alone, place.map());
      CACHALOT_TRY(place.unmap(place.bytes()));
      quiet.push_back(alone / kHandles);
      CACHALOT_TRY_ASSIGN(
          const auto pool,
          device_memory::HandlePool::start(backend_, {.low_handles = 0, .high_handles = kCreated}));
      for (device_memory::HandlePoolCounts now = pool->counts(); now.filled == 0;
           now = pool->counts()) {
        if (now.failed_fills == 0) continue;
        return Error::make(Code::kNoSpace, "vmm: the GPU has no memory left for handles of 2 MiB");
      }
      CACHALOT_TRY_ASSIGN(const double ns, place.map());
      const bool was_creating = pool->counts().filled < kCreated;
      CACHALOT_TRY(place.unmap(place.bytes()));
      if (was_creating) beside.push_back(ns / kHandles);
    }
    if (beside.empty()) return {};
    report_.add({"map_beside_creates/cuda/2MiB", median_of(beside) * 1e-3, "us",
                 "a map while nothing is created", median_of(quiet) * 1e-3});
    return {};
  }

  Report& report_;
  const gpu::Driver& driver_;
  device_memory::CudaBackend& backend_;
  const std::uint32_t rounds_;
  int device_ = 0;
  gpu::Context context_ = nullptr;
  std::vector<double> alloc_;
  std::array<Samples, kSizes.size()> samples_;
};

}  // namespace

Status bench_vmm_cuda(const Settings& settings, Report& report) {
  const Result<gpu::Driver> driver = gpu::load_driver();
  auto backend = device_memory::CudaBackend::open();
  if (!driver || !backend) {
    const Error& error = driver ? backend.error() : driver.error();
    report.note(std::string("cuda: left out: ") + error.message);
    return {};
  }
  return GpuVmmBench(settings, report, *driver, **backend).run();
}

}  // namespace cachalot::apps::bench
