// The first GPU, for what the program itself runs there: its kernels, memory, one stream.
//
// @threads belongs to the one that made it
#pragma once

#include <cachalot/result.h>

#include <array>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>

#include "gpu/driver.h"

namespace cachalot::apps {

class Gpu;

// Bytes of the GPU's memory, or, for the host, page-locked ones that the GPU reaches too.
class GpuMemory {
 public:
  GpuMemory() = default;
  GpuMemory(GpuMemory&& other) noexcept
      : gpu_(std::exchange(other.gpu_, nullptr)), at_(other.at_), host_(other.host_) {}
  GpuMemory& operator=(GpuMemory&& other) noexcept {
    std::swap(gpu_, other.gpu_);
    std::swap(at_, other.at_);
    std::swap(host_, other.host_);
    return *this;
  }
  ~GpuMemory();

  gpu::DevicePointer at() const { return at_; }  // the GPU's address
  void* host() const { return host_; }           // null: the host does not reach it

 private:
  friend class Gpu;
  const Gpu* gpu_ = nullptr;
  gpu::DevicePointer at_ = 0;
  void* host_ = nullptr;
};

class Gpu {
 public:
  // @param image  its kernels, as cachalot_kernel_image made them
  // @errors kUnsupported: no GPU, or a binary without kernels; the driver's
  static Result<std::unique_ptr<Gpu>> open(std::span<const unsigned char> image);
  // All its memory has been released.
  ~Gpu();
  Gpu(const Gpu&) = delete;
  Gpu& operator=(const Gpu&) = delete;

  // @errors the driver's: none of this name
  Result<gpu::Function> kernel(const char* name) const;
  Result<GpuMemory> allocate(std::uint64_t bytes) const;
  Result<GpuMemory> allocate_page_locked(std::uint64_t bytes) const;

  // One after the other, on one stream. parameters: addresses of the kernel's, as its declaration has them.
  Status launch(gpu::Function kernel, std::uint64_t blocks, std::uint32_t threads,
                std::span<void* const> parameters) const;
  Status copy(gpu::DevicePointer to, gpu::DevicePointer from, std::uint64_t bytes) const;
  // From memory of the process, which may be used again when it returns.
  Status upload(gpu::DevicePointer to, const void* from, std::uint64_t bytes) const;
  Status synchronize() const;

  std::string name() const;
  std::uint32_t multiprocessors() const { return multiprocessors_; }

 private:
  friend class GpuMemory;
  explicit Gpu(const gpu::Driver& driver) : driver_(driver) {}

  Status prepare(std::span<const unsigned char> image);
  Status check(int result, const char* call) const;

  const gpu::Driver driver_;
  int device_ = 0;
  std::uint32_t multiprocessors_ = 0;
  gpu::Context context_ = nullptr;
  gpu::Module module_ = nullptr;
  gpu::Stream stream_ = nullptr;
};

}  // namespace cachalot::apps
