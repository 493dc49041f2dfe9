#include "cuda_device.h"

#include <algorithm>

#include "cuda_kernels.h"
#include "kv/extent_cursor.h"
#include "kv/walk.h"

namespace cachalot::apps::bench {

namespace {

constexpr std::uint64_t kTableBytes = 4 << 20;

std::vector<std::uint64_t> addresses(const kv::EngineCache& cache) {
  std::vector<std::uint64_t> out;
  for (std::byte* const base : cache.bases()) out.push_back(reinterpret_cast<std::uintptr_t>(base));
  return out;
}

}  // namespace

Result<std::unique_ptr<GpuPages>> GpuPages::make(kv::CudaDevice& device, const Model& model,
                                                 std::uint32_t blocks) {
  CACHALOT_TRY(model.geometry.check());
  std::unique_ptr<GpuPages> made(new GpuPages(device));
  // Twice as many places as a call copies, so that two calls in a row find other ones.
  const std::uint32_t pages = 2 * blocks;
  const std::uint64_t block = model.geometry.block_bytes(), layer = model.geometry.layer_bytes();
  std::uint64_t bytes = pages * ((block + 63) / 64 * 64);
  bytes = (bytes + memory::kStripeBytes - 1) / memory::kStripeBytes * memory::kStripeBytes;
  CACHALOT_TRY_ASSIGN(made->pool_, memory::DeviceSet::create({"memfd:bench"}, bytes));
  CACHALOT_TRY(device.register_pool(made->pool_->base(0), bytes));
  made->registered_ = true;
  const kv::CudaDevice::Entered entered(device);
  CACHALOT_TRY(entered.status());
  const gpu::Driver& driver = device.driver();
  CACHALOT_TRY(device.check(driver.memory_allocate(&made->memory_, pages * block), "cuMemAlloc"));
  CACHALOT_TRY_ASSIGN(made->stream_, device.make_stream());
  std::vector<kv::Tensor> tensors;
  for (std::uint32_t l = 0; l < model.geometry.layers; ++l) {
    auto* const at = reinterpret_cast<std::byte*>(made->memory_ + l * pages * layer);
    tensors.push_back({at, pages * layer});
  }
  CACHALOT_TRY_ASSIGN(made->cache_,
                      kv::EngineCache::make({model.geometry, 0, pages, 0}, model.layout, tensors));
  return made;
}

GpuPages::~GpuPages() {
  {
    const kv::CudaDevice::Entered entered(device_);
    const gpu::Driver& driver = device_.driver();
    if (stream_ != nullptr) driver.stream_destroy(stream_);
    if (memory_ != 0) driver.memory_free(memory_);
  }
  if (registered_) static_cast<void>(device_.unregister_pool(pool_->base(0)));
}

std::span<const kv::BlockCopy> GpuPages::next(std::uint32_t blocks,
                                              std::span<const kv::TokenRange> tokens) {
  const std::uint64_t padded = (cache_->geometry().block_bytes() + 63) / 64 * 64;
  std::vector<std::uint32_t> places(cache_->pages());
  for (std::uint32_t i = 0; i < places.size(); ++i) places[i] = i;
  extents_.clear();
  pages_.clear();
  copies_.clear();
  for (std::uint32_t i = 0; i < blocks; ++i) {
    std::swap(places[i], places[i + rng_.below(places.size() - i)]);
    pages_.push_back(places[i]);
    extents_.push_back({pool_->base(0) + places[places.size() - 1 - i] * padded, padded});
  }
  for (std::uint32_t i = 0; i < blocks; ++i) {
    copies_.push_back({{&extents_[i], 1}, {&pages_[i], 1}, tokens});
  }
  return copies_;
}

std::uint64_t GpuPages::flat_pool() const {
  const Result<std::uint64_t> found = device_.pool().find({pool_->base(0), 64});
  return found ? *found : 0;
}

Status GpuPages::synchronize() const {
  const kv::CudaDevice::Entered entered(device_);
  return device_.check(device_.driver().stream_synchronize(stream_), "cuStreamSynchronize");
}

Result<PageLocked> PageLocked::make(const kv::CudaDevice& device, std::uint64_t bytes) {
  const kv::CudaDevice::Entered entered(device);
  CACHALOT_TRY(entered.status());
  void* host = nullptr;
  const unsigned flags = gpu::kHostPortable | gpu::kHostDeviceMap;
  CACHALOT_TRY(device.check(device.driver().host_allocate(&host, bytes, flags), "cuMemHostAlloc"));
  PageLocked made(device, host);
  CACHALOT_TRY(device.check(device.driver().host_device_pointer(&made.at_, host, 0),
                            "cuMemHostGetDevicePointer"));
  return made;
}

PageLocked::~PageLocked() {
  if (host_ == nullptr) return;
  const kv::CudaDevice::Entered entered(device_);
  device_.driver().host_free(host_);
}

Result<gpu::Module> load_bench_kernels(const kv::CudaDevice& device) {
  if (cuda_kernel_image().empty()) {
    return Error::make(Code::kUnsupported, "cuda: this binary was built without kernels");
  }
  gpu::Module module = nullptr;
  CACHALOT_TRY(device.check(device.driver().module_load(&module, cuda_kernel_image().data()),
                            "cuModuleLoadData"));
  return module;
}

Status DriverBatch::prepare(std::span<const kv::BlockCopy> blocks, kv::Direction direction) {
  CACHALOT_TRY_ASSIGN(
      const kv::CopyPlan plan,
      kv::CopyPlan::compile(pages_.cache(), kv::default_block_order(), {}, kv::grain_of(blocks)));
  to_.clear();
  from_.clear();
  bytes_.clear();
  auto& pool = direction == kv::Direction::kGather ? to_ : from_;
  auto& engine = direction == kv::Direction::kGather ? from_ : to_;
  for (const kv::BlockCopy& block : blocks) {
    CACHALOT_TRY_ASSIGN(const std::uint64_t at, pages_.device().pool().find(block.pool[0]));
    kv::for_each_fragment(plan.arithmetic(), block.tokens, [&](const kv::Fragment& f) {
      engine.push_back(reinterpret_cast<std::uintptr_t>(pages_.cache().bases()[f.tensor]) +
                       f.engine_offset + block.pages[f.page] * f.page_stride);
      pool.push_back(at + f.pool_offset);
      bytes_.push_back(f.bytes);
    });
  }
  return {};
}

Status DriverBatch::launch() {
  const kv::CudaDevice& device = pages_.device();
  if (device.driver().copy_batch == nullptr) {
    return Error::make(Code::kUnsupported, "cuda: this driver has no batched copies");
  }
  gpu::CopyAttributes attributes;
  std::size_t first = 0, failed = 0;
  const kv::CudaDevice::Entered entered(device);
  return device.check(
      device.driver().copy_batch(to_.data(), from_.data(), bytes_.data(), bytes_.size(),
                                 &attributes, &first, 1, &failed, pages_.stream()),
      "cuMemcpyBatchAsync");
}

Result<std::unique_ptr<WarpPerToken>> WarpPerToken::make(const GpuPages& pages,
                                                         std::uint32_t thread_blocks) {
  std::unique_ptr<WarpPerToken> made(new WarpPerToken(pages, thread_blocks));
  const kv::CudaDevice& device = pages.device();
  const kv::CudaDevice::Entered entered(device);
  CACHALOT_TRY(entered.status());
  const gpu::Driver& driver = device.driver();
  CACHALOT_TRY_ASSIGN(made->module_, load_bench_kernels(device));
  CACHALOT_TRY(
      device.check(driver.module_function(&made->function_, made->module_, "bench_warp_per_token"),
                   "cuModuleGetFunction"));
  CACHALOT_TRY(device.check(driver.memory_allocate(&made->tables_, kTableBytes), "cuMemAlloc"));
  return made;
}

WarpPerToken::~WarpPerToken() {
  const kv::CudaDevice& device = pages_.device();
  const kv::CudaDevice::Entered entered(device);
  if (tables_ != 0) device.driver().memory_free(tables_);
  if (module_ != nullptr) device.driver().module_unload(module_);
}

Status WarpPerToken::prepare(std::span<const kv::BlockCopy> blocks) {
  const kv::CudaDevice& device = pages_.device();
  CACHALOT_TRY_ASSIGN(
      const kv::CopyPlan plan,
      kv::CopyPlan::compile(pages_.cache(), kv::default_block_order(), {}, kv::Grain::kToken));
  CACHALOT_TRY_ASSIGN(
      const kv::CallTables tables,
      kv::CallTables::make(plan, blocks, addresses(pages_.cache()), &device.pool(), {32, 2048}));
  if (tables.bytes().size() > kTableBytes) {
    return Error::make(Code::kNoSpace, "bench: tables of %zu bytes", tables.bytes().size());
  }
  call_ = tables.call_at(tables_);
  const kv::CudaDevice::Entered entered(device);
  CACHALOT_TRY(device.check(device.driver().copy_to_device(tables_, tables.bytes().data(),
                                                           tables.bytes().size(), pages_.stream()),
                            "cuMemcpyHtoDAsync"));
  return pages_.synchronize();
}

Status WarpPerToken::launch(kv::Direction direction) {
  const kv::CudaDevice& device = pages_.device();
  const kv::CudaDevice::Entered entered(device);
  int gathers = direction == kv::Direction::kGather ? 1 : 0;
  void* parameters[] = {&call_, &gathers};
  return device.check(device.driver().launch(function_, thread_blocks_, 1, 1, 1024, 1, 1, 0,
                                             pages_.stream(), parameters, nullptr),
                      "cuLaunchKernel of a baseline");
}

}  // namespace cachalot::apps::bench
