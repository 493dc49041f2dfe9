// What `bench cuda` measures on: a model's pages in a GPU's memory, a registered pool, and the ways of
// copying between them.
#pragma once

#include <cachalot/result.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "base/rng.h"
#include "fragments.h"
#include "kv/cuda/cuda_engine.h"
#include "memory/devices.h"

namespace cachalot::apps::bench {

// Pages of a model on a GPU, and blocks of a pool.
class GpuPages {
 public:
  // @errors as the driver's, and kNoSpace
  static Result<std::unique_ptr<GpuPages>> make(kv::CudaDevice& device, const Model& model,
                                                std::uint32_t blocks);
  ~GpuPages();
  GpuPages(const GpuPages&) = delete;
  GpuPages& operator=(const GpuPages&) = delete;

  kv::CudaDevice& device() const { return device_; }
  const kv::EngineCache& cache() const { return *cache_; }
  gpu::Stream stream() const { return stream_; }
  // Blocks at random places in both; `tokens`: of each, or none for all. Valid until the next call.
  std::span<const kv::BlockCopy> next(std::uint32_t blocks, std::span<const kv::TokenRange> tokens);
  // As many bytes in one piece on both sides.
  std::uint64_t flat_engine() const { return memory_; }
  std::uint64_t flat_pool() const;

  Status synchronize() const;

 private:
  explicit GpuPages(kv::CudaDevice& device) : device_(device) {}

  kv::CudaDevice& device_;
  gpu::DevicePointer memory_ = 0;
  gpu::Stream stream_ = nullptr;
  std::optional<memory::DeviceSet> pool_;
  bool registered_ = false;
  std::optional<kv::EngineCache> cache_;
  std::vector<memory::Extent> extents_;
  std::vector<std::uint32_t> pages_;
  std::vector<kv::BlockCopy> copies_;
  base::Rng rng_{1};
};

// Host memory that the driver allocated and page-locked.
class PageLocked {
 public:
  // @errors the driver's
  static Result<PageLocked> make(const kv::CudaDevice& device, std::uint64_t bytes);
  PageLocked(PageLocked&& other) noexcept
      : device_(other.device_), host_(std::exchange(other.host_, nullptr)), at_(other.at_) {}
  ~PageLocked();
  PageLocked& operator=(PageLocked&&) = delete;

  std::uint64_t at() const { return at_; }  // as the device addresses it
  void* host() const { return host_; }

 private:
  PageLocked(const kv::CudaDevice& device, void* host) : device_(device), host_(host) {}

  const kv::CudaDevice& device_;
  void* host_ = nullptr;
  gpu::DevicePointer at_ = 0;
};

// cuda_kernels.cu. The caller has entered the device, and unloads it.
// @errors kUnsupported: built without kernels
Result<gpu::Module> load_bench_kernels(const kv::CudaDevice& device);

// The driver's copies of many pieces in one call (CUDA 12.8).
class DriverBatch {
 public:
  explicit DriverBatch(const GpuPages& pages) : pages_(pages) {}
  // The list of the fragments first: it is not part of what is measured.
  Status prepare(std::span<const kv::BlockCopy> blocks, kv::Direction direction);
  // @errors kUnsupported: the driver has no such call
  Status launch();

 private:
  const GpuPages& pages_;
  std::vector<gpu::DevicePointer> to_, from_;
  std::vector<std::size_t> bytes_;
};

// cuda_kernels.cu, on `thread_blocks` multiprocessors.
class WarpPerToken {
 public:
  // @errors kUnsupported: built without kernels
  static Result<std::unique_ptr<WarpPerToken>> make(const GpuPages& pages,
                                                    std::uint32_t thread_blocks);
  ~WarpPerToken();
  WarpPerToken(const WarpPerToken&) = delete;
  WarpPerToken& operator=(const WarpPerToken&) = delete;
  // Tables first, and waits for them: they are not part of what is measured.
  Status prepare(std::span<const kv::BlockCopy> blocks);
  Status launch(kv::Direction direction);

 private:
  WarpPerToken(const GpuPages& pages, std::uint32_t thread_blocks)
      : pages_(pages), thread_blocks_(thread_blocks) {}

  const GpuPages& pages_;
  const std::uint32_t thread_blocks_;
  gpu::Module module_ = nullptr;
  gpu::Function function_ = nullptr;
  gpu::DevicePointer tables_ = 0;
  kv::FusedCall call_{};
};

}  // namespace cachalot::apps::bench
