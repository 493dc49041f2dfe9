#include "cuda_overlap.h"

#include <algorithm>
#include <deque>
#include <utility>

#include "cuda_kernels.h"

namespace cachalot::apps::bench {
namespace {

using kv::Direction;

constexpr std::uint32_t kComputeThreads = 256;
// Of Compute::kWhole: one more or less, because 132 do not divide by 128, is less than what is looked for.
constexpr std::uint32_t kWaves = 64;
constexpr double kKernelMs = 20;
constexpr std::uint64_t kStreamedBytes = std::uint64_t{256} << 20;  // far more than a GPU's cache
constexpr std::uint64_t kQuickBytes = std::uint64_t{4} << 20;

// The kernel of cuda_kernels.cu: so many rounds of one limit.
class ComputeKernel {
 public:
  static Result<std::unique_ptr<ComputeKernel>> make(kv::CudaDevice& device, Compute compute,
                                                     bool quick) {
    std::unique_ptr<ComputeKernel> made(
        new ComputeKernel(device, quick ? kQuickBytes : kStreamedBytes));
    const kv::CudaDevice::Entered entered(device);
    CACHALOT_TRY(entered.status());
    const gpu::Driver& driver = device.driver();
    CACHALOT_TRY_ASSIGN(made->module_, load_bench_kernels(device));
    const char* const name =
        compute == Compute::kMemory ? "bench_compute_memory" : "bench_compute_math";
    CACHALOT_TRY(device.check(driver.module_function(&made->function_, made->module_, name),
                              "cuModuleGetFunction"));
    if (compute == Compute::kWhole) CACHALOT_TRY(made->take_shared_memory(quick ? 2 : kWaves));
    CACHALOT_TRY(
        device.check(driver.memory_allocate(&made->memory_, made->memory_bytes_), "cuMemAlloc"));
    CACHALOT_TRY(device.check(driver.stream_create(&made->stream_, gpu::kStreamNonBlocking),
                              "cuStreamCreate"));
    CACHALOT_TRY(
        device.check(driver.event_create(&made->done_, gpu::kEventNoTiming), "cuEventCreate"));
    CACHALOT_TRY(made->calibrate());
    return made;
  }
  ~ComputeKernel() {
    const kv::CudaDevice::Entered entered(device_);
    const gpu::Driver& driver = device_.driver();
    if (stream_ != nullptr) {
      driver.stream_synchronize(stream_);
      driver.stream_destroy(stream_);
    }
    if (done_ != nullptr) driver.event_destroy(done_);
    if (memory_ != 0) driver.memory_free(memory_);
    if (module_ != nullptr) driver.module_unload(module_);
  }
  ComputeKernel(const ComputeKernel&) = delete;
  ComputeKernel& operator=(const ComputeKernel&) = delete;

  Status start() {
    const kv::CudaDevice::Entered entered(device_);
    CACHALOT_TRY(entered.status());
    std::uint64_t words = memory_bytes_ / 16;
    void* parameters[] = {&memory_, &words, &rounds_};
    CACHALOT_TRY(
        device_.check(device_.driver().launch(function_, blocks_, 1, 1, kComputeThreads, 1, 1,
                                              shared_bytes_, stream_, parameters, nullptr),
                      "cuLaunchKernel of a measured kernel"));
    return device_.check(device_.driver().event_record(done_, stream_), "cuEventRecord");
  }
  Result<bool> is_done() const {
    const kv::CudaDevice::Entered entered(device_);
    const int result = device_.driver().event_query(done_);
    if (result == gpu::kNotReady) return false;
    CACHALOT_TRY(device_.check(result, "cuEventQuery"));
    return true;
  }

 private:
  // By default as many threads as stay on all multiprocessors at once, so that time is the work and not
  // waves.
  ComputeKernel(kv::CudaDevice& device, std::uint64_t memory_bytes)
      : device_(device), memory_bytes_(memory_bytes), blocks_(device.multiprocessors() * 4) {}

  // One thread block a multiprocessor at a time.
  Status take_shared_memory(std::uint32_t waves) {
    const gpu::Driver& driver = device_.driver();
    int bytes = 0;
    CACHALOT_TRY(
        device_.check(driver.device_attribute(&bytes, gpu::kMostSharedBytes, device_.ordinal()),
                      "cuDeviceGetAttribute"));
    CACHALOT_TRY(device_.check(
        driver.set_function_attribute(function_, gpu::kFunctionDynamicSharedBytes, bytes),
        "cuFuncSetAttribute"));
    shared_bytes_ = static_cast<std::uint32_t>(bytes);
    blocks_ = device_.multiprocessors() * waves;
    return {};
  }

  Result<double> run_ms() {
    const std::uint64_t begin = now_ns();
    CACHALOT_TRY(start());
    CACHALOT_TRY(
        device_.check(device_.driver().stream_synchronize(stream_), "cuStreamSynchronize"));
    return static_cast<double>(now_ns() - begin) * 1e-6;
  }
  // Rounds for kKernelMs: more and more, until what is measured is the kernel and not its launch.
  Status calibrate() {
    CACHALOT_TRY(run_ms());  // the driver loads a kernel when it is launched first
    for (double ms = 0; ms < kKernelMs / 2;) {
      CACHALOT_TRY_ASSIGN(ms, run_ms());
      const double more = std::clamp(kKernelMs / std::max(ms, 1e-3), 1.0 / rounds_, 16.0);
      rounds_ = static_cast<std::uint32_t>(std::min(rounds_ * more, 1e9));
      if (rounds_ == 1) break;  // on a machine this slow, one is all there is
    }
    return {};
  }

  kv::CudaDevice& device_;
  const std::uint64_t memory_bytes_;
  std::uint32_t blocks_, shared_bytes_ = 0;
  std::uint32_t rounds_ = 1;
  gpu::Module module_ = nullptr;
  gpu::Function function_ = nullptr;
  gpu::DevicePointer memory_ = 0;
  gpu::Stream stream_ = nullptr;
  gpu::Event done_ = nullptr;
};

// Copies without end: two calls are always in flight.
class CopyLoad {
 public:
  static Result<std::unique_ptr<CopyLoad>> make(kv::CudaDevice& device, Direction direction,
                                                kv::Way way, std::uint32_t blocks) {
    std::unique_ptr<CopyLoad> made(new CopyLoad(direction, blocks));
    CACHALOT_TRY_ASSIGN(made->pages_, GpuPages::make(device, synthetic_model(), blocks));
    CACHALOT_TRY_ASSIGN(
        made->engine_, kv::CudaEngine::make(device, made->pages_->cache(),
                                            kv::default_block_order(), *made->domain_,
                                            {.way = way, .started_reads = kv::ReadCheck::kPinned}));
    made->call_bytes_ = blocks * made->pages_->cache().geometry().block_bytes();
    return made;
  }

  // @return bytes of the calls that have ended since the last call of it
  Result<std::uint64_t> keep_going() {
    std::uint64_t bytes = 0;
    while (!under_way_.empty()) {
      CACHALOT_TRY_ASSIGN(const bool is_done, under_way_.front().is_done());
      if (!is_done) break;
      CACHALOT_TRY(under_way_.front().wait());
      under_way_.pop_front();
      bytes += call_bytes_;
    }
    while (under_way_.size() < 2) {
      const std::span<const kv::BlockCopy> copies = pages_->next(blocks_, {});
      CACHALOT_TRY_ASSIGN(kv::PendingCopy copy,
                          direction_ == Direction::kGather
                              ? engine_->start_gather(copies, pages_->stream())
                              : engine_->start_scatter(copies, pages_->stream()));
      under_way_.push_back(std::move(copy));
    }
    return bytes;
  }
  Status stop() {
    for (; !under_way_.empty(); under_way_.pop_front()) CACHALOT_TRY(under_way_.front().wait());
    return {};
  }

 private:
  CopyLoad(Direction direction, std::uint32_t blocks) : direction_(direction), blocks_(blocks) {}

  const Direction direction_;
  const std::uint32_t blocks_;
  std::uint64_t call_bytes_ = 0;
  const std::unique_ptr<memory::Domain> domain_ = memory::make_coherent_domain();
  std::unique_ptr<GpuPages> pages_;
  std::unique_ptr<kv::CudaEngine> engine_;
  std::deque<kv::PendingCopy> under_way_;
};

struct Beside {
  double kernel_ms = 0, copy_gb_s = 0;
};
Result<Beside> run_beside(ComputeKernel& kernel, CopyLoad& load) {
  CACHALOT_TRY(load.keep_going());
  const std::uint64_t begin = now_ns();
  CACHALOT_TRY(kernel.start());
  std::uint64_t bytes = 0;
  for (bool is_done = false; !is_done;) {
    CACHALOT_TRY_ASSIGN(const std::uint64_t copied, load.keep_going());
    bytes += copied;
    CACHALOT_TRY_ASSIGN(is_done, kernel.is_done());
  }
  const auto ns = static_cast<double>(now_ns() - begin);
  CACHALOT_TRY(load.stop());
  return Beside{ns * 1e-6, static_cast<double>(bytes) / ns};
}

Result<double> run_alone(ComputeKernel& kernel) {
  const std::uint64_t begin = now_ns();
  CACHALOT_TRY(kernel.start());
  for (bool is_done = false; !is_done;) {
    CACHALOT_TRY_ASSIGN(is_done, kernel.is_done());
  }
  return static_cast<double>(now_ns() - begin) * 1e-6;
}

// Calls of one block.
class OneBlock {
 public:
  static Result<std::unique_ptr<OneBlock>> make(kv::CudaDevice& device, Direction direction,
                                                kv::Way way) {
    std::unique_ptr<OneBlock> made(new OneBlock(direction));
    CACHALOT_TRY_ASSIGN(made->pages_, GpuPages::make(device, synthetic_model(), 1));
    CACHALOT_TRY_ASSIGN(
        made->engine_,
        kv::CudaEngine::make(device, made->pages_->cache(), kv::default_block_order(),
                             *made->domain_, {.way = way, .stream = made->pages_->stream()}));
    return made;
  }
  Result<double> copy_us() {
    const std::span<const kv::BlockCopy> copies = pages_->next(1, {});
    const std::uint64_t start = now_ns();
    CACHALOT_TRY(direction_ == Direction::kGather ? engine_->gather(copies)
                                                  : engine_->scatter(copies));
    return static_cast<double>(now_ns() - start) * 1e-3;
  }

 private:
  explicit OneBlock(Direction direction) : direction_(direction) {}

  const Direction direction_;
  const std::unique_ptr<memory::Domain> domain_ = memory::make_coherent_domain();
  std::unique_ptr<GpuPages> pages_;
  std::unique_ptr<kv::CudaEngine> engine_;
};

Result<double> run_copies_alone(CopyLoad& load, double ms) {
  CACHALOT_TRY(load.keep_going());
  const std::uint64_t begin = now_ns();
  std::uint64_t bytes = 0;
  while (static_cast<double>(now_ns() - begin) < ms * 1e6) {
    CACHALOT_TRY_ASSIGN(const std::uint64_t copied, load.keep_going());
    bytes += copied;
  }
  const auto ns = static_cast<double>(now_ns() - begin);
  CACHALOT_TRY(load.stop());
  return static_cast<double>(bytes) / ns;
}

}  // namespace

Result<FlatTimes> measure_flat(const Settings& settings, kv::CudaDevice& device,
                               Direction direction, std::uint64_t bytes) {
  show_progress("cuda: one large copy");
  const Model model = synthetic_model();
  const auto blocks = static_cast<std::uint32_t>(bytes / model.geometry.block_bytes() + 1);
  CACHALOT_TRY_ASSIGN(const std::unique_ptr<GpuPages> pages, GpuPages::make(device, model, blocks));
  CACHALOT_TRY_ASSIGN(const PageLocked locked, PageLocked::make(device, bytes));
  FlatTimes times;
  const kv::CudaDevice::Entered entered(device);
  CACHALOT_TRY(entered.status());
  const auto copy = [&](std::uint64_t pool, std::vector<double>& us) -> Status {
    const std::uint64_t engine = pages->flat_engine();
    const bool gathers = direction == Direction::kGather;
    const std::uint64_t start = now_ns();
    CACHALOT_TRY(device.check(device.driver().copy(gathers ? pool : engine, gathers ? engine : pool,
                                                   bytes, pages->stream()),
                              "cuMemcpyAsync"));
    CACHALOT_TRY(pages->synchronize());
    us.push_back(static_cast<double>(now_ns() - start) * 1e-3);
    return {};
  };
  for (std::uint32_t i = 0; i < settings.repeats + 1; ++i) {
    CACHALOT_TRY(copy(pages->flat_pool(), times.pool_us));
    CACHALOT_TRY(copy(locked.at(), times.page_locked_us));
    if (i == 0) times = {};  // warms up
  }
  return times;
}

Result<LatencyTimes> measure_latency(const Settings& settings, kv::CudaDevice& device,
                                     Direction direction, Compute compute, kv::Way way) {
  CACHALOT_TRY_ASSIGN(const auto kernel, ComputeKernel::make(device, compute, settings.quick));
  CACHALOT_TRY_ASSIGN(const auto block, OneBlock::make(device, direction, way));
  const std::size_t samples = settings.repeats * (settings.quick ? 2 : 5);
  LatencyTimes times;
  for (int i = 0; i < 2; ++i) CACHALOT_TRY(block->copy_us());  // warms up
  while (times.beside_us.size() < samples) {
    CACHALOT_TRY_ASSIGN(const double alone, block->copy_us());
    times.alone_us.push_back(alone);
    CACHALOT_TRY(kernel->start());
    // The first may wait for the whole kernel. The last of several had the GPU to itself at its end.
    bool is_first = true;
    for (bool is_done = false; !is_done; is_first = false) {
      CACHALOT_TRY_ASSIGN(const double beside, block->copy_us());
      CACHALOT_TRY_ASSIGN(is_done, kernel->is_done());
      if (!is_done || is_first) times.beside_us.push_back(beside);
    }
  }
  return times;
}

Result<OverlapTimes> measure_overlap(const Settings& settings, kv::CudaDevice& device,
                                     Direction direction, Compute compute, kv::Way way) {
  const std::uint32_t blocks = settings.quick ? 2 : 8;
  CACHALOT_TRY_ASSIGN(const auto kernel, ComputeKernel::make(device, compute, settings.quick));
  CACHALOT_TRY_ASSIGN(const auto load, CopyLoad::make(device, direction, way, blocks));
  OverlapTimes times;
  std::vector<double> beside, alone;
  for (std::uint32_t i = 0; i < settings.repeats + 1; ++i) {
    CACHALOT_TRY_ASSIGN(const double ms, run_alone(*kernel));
    CACHALOT_TRY_ASSIGN(const Beside both, run_beside(*kernel, *load));
    CACHALOT_TRY_ASSIGN(const double copies, run_copies_alone(*load, ms));
    if (i == 0) continue;  // warms up
    times.alone_ms.push_back(ms);
    times.beside_ms.push_back(both.kernel_ms);
    beside.push_back(both.copy_gb_s);
    alone.push_back(copies);
  }
  times.copy_gb_s = median_of(beside);
  times.copy_alone_gb_s = median_of(alone);
  return times;
}

}  // namespace cachalot::apps::bench
