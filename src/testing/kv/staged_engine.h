// For tests: a GPU's copy engine as one of host memory, so that a suite made for memory that the host
// can read runs on it. Before a call the pages go into the device's memory, after a scatter they come
// back. The GPU is a fake one, or the first that there is.
#pragma once

#include <gtest/gtest.h>

#include <cstring>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "kv/cuda/cuda_engine.h"
#include "testing/kv/fake_kernels.h"
#include "testing/kv/kernels_under_test.h"

namespace cachalot::kv {

// Pool memory that a test has, to be registered.
struct PoolMemory {
  std::byte* at = nullptr;
  std::uint64_t bytes = 0;
};

// The first GPU, opened once; null where there is none, and why.
inline CudaDevice* first_gpu(std::string* why = nullptr) {
  static Result<std::unique_ptr<CudaDevice>> device = CudaDevice::open(0);
  if (!device && why != nullptr) *why = device.error().message;
  return device ? device->get() : nullptr;
}

// The fake machine that lives, or a new one.
inline std::shared_ptr<gpu::FakeMachine> fake_machine() {
  static std::weak_ptr<gpu::FakeMachine> shared;
  std::shared_ptr<gpu::FakeMachine> machine = shared.lock();
  if (machine != nullptr) return machine;
  shared = machine = std::make_shared<gpu::FakeMachine>();
  add_kernels_under_test(*machine);
  return machine;
}

class StagedEngine final : public CopyEngine {
 public:
  StagedEngine(bool is_fake, Way way, const EngineCache& cache, std::vector<Tensor> tensors,
               const BlockOrder& order, memory::Domain& domain, const PoolMemory& pool)
      : host_(&cache), tensors_(std::move(tensors)), pool_(pool) {
    if (is_fake) {
      machine_ = fake_machine();
      own_ = *CudaDevice::open(machine_->driver(), kFakeImage, 0);
    }
    device_ = is_fake ? own_.get() : first_gpu();
    std::uint64_t bytes = 0;
    for (const Tensor& tensor : tensors_) bytes += padded(tensor.bytes);
    const CudaDevice::Entered entered(*device_);
    EXPECT_TRUE(check(driver().memory_allocate(&memory_, bytes)));
    void* stage = nullptr;
    EXPECT_TRUE(check(driver().host_allocate(&stage, bytes, gpu::kHostPortable)));
    stage_ = static_cast<std::byte*>(stage);
    // The fake's in some parts, so that blocks lie in several; a GPU wants whole pages.
    const std::uint64_t part = (pool.bytes / 13 / memory::kLineBytes + 1) * memory::kLineBytes;
    EXPECT_TRUE(device_->register_pool(pool.at, pool.bytes,
                                       is_fake ? part : gpu::PoolRegistration::kMostBytes));
    EXPECT_TRUE(check(driver().stream_create(&stream_, gpu::kStreamNonBlocking)));
    std::vector<Tensor> there;
    std::uint64_t at = memory_;
    for (const Tensor& tensor : tensors_) {
      there.push_back({reinterpret_cast<std::byte*>(at), tensor.bytes});
      at += padded(tensor.bytes);
    }
    bytes_ = bytes;
    cache_.emplace(*EngineCache::with_strides(cache.shape(), cache.strides(), there));
    // A few threads, so that each has several items; the fake runs them one after the other. Three blocks do not
    // divide the work evenly.
    CudaOptions options{.way = way, .thread_blocks = 3, .threads = 32, .stream = stream_};
    engine_ = *CudaEngine::make(*device_, *cache_, order, domain, options);
    options.inline_table_bytes = 0;
    options.batch_copies = 5;
    with_copied_tables_ = *CudaEngine::make(*device_, *cache_, order, domain, options);
  }
  ~StagedEngine() override {
    end();
    own_.reset();
    if (machine_ == nullptr) return;
    EXPECT_EQ(machine_->faults, 0u);
    EXPECT_EQ(machine_->refused, 0u);
    EXPECT_EQ(machine_->pageable_copies, 0u);
    if (machine_.use_count() != 1) return;
    EXPECT_EQ(machine_->allocations() + machine_->registrations(), 0u);
    EXPECT_EQ(machine_->events() + machine_->modules + machine_->streams + machine_->contexts, 0);
  }

  Status gather(std::span<const BlockCopy> blocks, LayerRange layers) override {
    CACHALOT_TRY(move_pages(true));
    return next().gather(blocks, layers);
  }
  Status scatter(std::span<const BlockCopy> blocks, LayerRange layers) override {
    CACHALOT_TRY(move_pages(true));
    CACHALOT_TRY(next().scatter(blocks, layers));
    return move_pages(false);
  }
  Status scatter_rows(const RowPlan& plan, std::span<const RowBlock> blocks) override {
    CACHALOT_TRY(move_pages(true));
    CACHALOT_TRY(next().scatter_rows(plan, blocks));
    return move_pages(false);
  }
  const EngineCache& cache() const override { return *host_; }
  const BlockOrder& order() const override { return engine_->order(); }

 private:
  static std::uint64_t padded(std::uint64_t bytes) { return (bytes + 255) / 256 * 256; }
  void end() {
    const CudaDevice::Entered entered(*device_);
    engine_.reset();
    with_copied_tables_.reset();
    EXPECT_TRUE(check(driver().stream_synchronize(stream_)));
    EXPECT_TRUE(check(driver().stream_destroy(stream_)));
    EXPECT_TRUE(device_->unregister_pool(pool_.at));
    EXPECT_TRUE(check(driver().memory_free(memory_)));
    EXPECT_TRUE(check(driver().host_free(stage_)));
  }
  // Calls take turns: tables with the launch, tables by a copy; one batch, several.
  CudaEngine& next() { return calls_++ % 2 == 0 ? *engine_ : *with_copied_tables_; }
  const gpu::Driver& driver() const { return device_->driver(); }
  Status check(int result) const { return device_->check(result, "a test's call"); }

  // All tensors, by way of memory that is page-locked.
  Status move_pages(bool to_device) {
    const CudaDevice::Entered entered(*device_);
    const auto stage = reinterpret_cast<gpu::DevicePointer>(stage_);
    if (!to_device) {
      CACHALOT_TRY(check(driver().copy(stage, memory_, bytes_, stream_)));
      CACHALOT_TRY(check(driver().stream_synchronize(stream_)));
    }
    std::byte* at = stage_;
    for (const Tensor& tensor : tensors_) {
      std::memcpy(to_device ? at : tensor.at, to_device ? tensor.at : at, tensor.bytes);
      at += padded(tensor.bytes);
    }
    if (!to_device) return {};
    CACHALOT_TRY(check(driver().copy(memory_, stage, bytes_, stream_)));
    return check(driver().stream_synchronize(stream_));
  }

  const EngineCache* host_;
  std::vector<Tensor> tensors_;
  PoolMemory pool_;
  std::shared_ptr<gpu::FakeMachine> machine_;
  std::unique_ptr<CudaDevice> own_;
  CudaDevice* device_ = nullptr;
  gpu::DevicePointer memory_ = 0;
  std::byte* stage_ = nullptr;
  std::uint64_t bytes_ = 0;
  gpu::Stream stream_ = nullptr;
  std::optional<EngineCache> cache_;
  std::unique_ptr<CudaEngine> engine_, with_copied_tables_;
  std::uint64_t calls_ = 0;
};

}  // namespace cachalot::kv
