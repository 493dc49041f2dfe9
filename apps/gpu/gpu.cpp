#include "gpu.h"

#include "gpu/device_scope.h"

namespace cachalot::apps {

GpuMemory::~GpuMemory() {
  if (gpu_ == nullptr) return;
  const gpu::DeviceScope scope(gpu_->driver_, gpu_->context_);
  if (host_ != nullptr) {
    gpu_->driver_.host_free(host_);
  } else {
    gpu_->driver_.memory_free(at_);
  }
}

Result<std::unique_ptr<Gpu>> Gpu::open(std::span<const unsigned char> image) {
  if (image.empty()) {
    return Error::make(Code::kUnsupported, "cuda: this binary was built without kernels (no nvcc)");
  }
  CACHALOT_TRY_ASSIGN(const gpu::Driver driver, gpu::load_driver());
  std::unique_ptr<Gpu> made(new Gpu(driver));
  CACHALOT_TRY(made->prepare(image));
  return made;
}

Status Gpu::prepare(std::span<const unsigned char> image) {
  CACHALOT_TRY(check(driver_.init(0), "cuInit"));
  CACHALOT_TRY(check(driver_.device_get(&device_, 0), "cuDeviceGet"));
  int multiprocessors = 0;
  CACHALOT_TRY(check(driver_.device_attribute(&multiprocessors, gpu::kMultiprocessors, device_),
                     "cuDeviceGetAttribute"));
  multiprocessors_ = static_cast<std::uint32_t>(multiprocessors);
  CACHALOT_TRY(
      check(driver_.primary_context_retain(&context_, device_), "cuDevicePrimaryCtxRetain"));
  const gpu::DeviceScope scope(driver_, context_);
  CACHALOT_TRY(scope.status());
  CACHALOT_TRY(check(driver_.module_load(&module_, image.data()), "cuModuleLoadData"));
  return check(driver_.stream_create(&stream_, gpu::kStreamNonBlocking), "cuStreamCreate");
}

Gpu::~Gpu() {
  if (context_ == nullptr) return;
  {
    const gpu::DeviceScope scope(driver_, context_);
    if (stream_ != nullptr) driver_.stream_destroy(stream_);
    if (module_ != nullptr) driver_.module_unload(module_);
  }
  driver_.primary_context_release(device_);
}

Status Gpu::check(int result, const char* call) const {
  return gpu::check_call(driver_, result, call);
}

std::string Gpu::name() const {
  char text[128] = "";
  driver_.device_name(text, sizeof text, device_);
  return text;
}

Result<gpu::Function> Gpu::kernel(const char* name) const {
  const gpu::DeviceScope scope(driver_, context_);
  CACHALOT_TRY(scope.status());
  gpu::Function found = nullptr;
  CACHALOT_TRY(check(driver_.module_function(&found, module_, name), name));
  return found;
}

Result<GpuMemory> Gpu::allocate(std::uint64_t bytes) const {
  const gpu::DeviceScope scope(driver_, context_);
  CACHALOT_TRY(scope.status());
  gpu::DevicePointer at = 0;
  CACHALOT_TRY(check(driver_.memory_allocate(&at, bytes), "cuMemAlloc"));
  GpuMemory memory;
  memory.gpu_ = this;
  memory.at_ = at;
  return memory;
}

Result<GpuMemory> Gpu::allocate_page_locked(std::uint64_t bytes) const {
  const gpu::DeviceScope scope(driver_, context_);
  CACHALOT_TRY(scope.status());
  const unsigned flags = gpu::kHostPortable | gpu::kHostDeviceMap;
  void* host = nullptr;
  CACHALOT_TRY(check(driver_.host_allocate(&host, bytes, flags), "cuMemHostAlloc"));
  GpuMemory memory;
  memory.gpu_ = this;
  memory.host_ = host;
  CACHALOT_TRY(
      check(driver_.host_device_pointer(&memory.at_, host, 0), "cuMemHostGetDevicePointer"));
  return memory;
}

Status Gpu::launch(gpu::Function kernel, std::uint64_t blocks, std::uint32_t threads,
                   std::span<void* const> parameters) const {
  const gpu::DeviceScope scope(driver_, context_);
  CACHALOT_TRY(scope.status());
  return check(driver_.launch(kernel, static_cast<unsigned>(blocks), 1, 1, threads, 1, 1, 0,
                              stream_, const_cast<void**>(parameters.data()), nullptr),
               "cuLaunchKernel");
}

Status Gpu::copy(gpu::DevicePointer to, gpu::DevicePointer from, std::uint64_t bytes) const {
  const gpu::DeviceScope scope(driver_, context_);
  CACHALOT_TRY(scope.status());
  return check(driver_.copy(to, from, bytes, stream_), "cuMemcpyAsync");
}

Status Gpu::upload(gpu::DevicePointer to, const void* from, std::uint64_t bytes) const {
  const gpu::DeviceScope scope(driver_, context_);
  CACHALOT_TRY(scope.status());
  CACHALOT_TRY(check(driver_.copy_to_device(to, from, bytes, stream_), "cuMemcpyHtoDAsync"));
  return check(driver_.stream_synchronize(stream_), "cuStreamSynchronize");
}

Status Gpu::synchronize() const {
  const gpu::DeviceScope scope(driver_, context_);
  CACHALOT_TRY(scope.status());
  return check(driver_.stream_synchronize(stream_), "cuStreamSynchronize");
}

}  // namespace cachalot::apps
