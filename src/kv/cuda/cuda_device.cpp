#include "kv/cuda/cuda_device.h"

#include <algorithm>
#include <cstdio>

#include "kv/cuda/kernel_image.h"

namespace cachalot::kv {
namespace {

Result<int> attribute(const gpu::Driver& driver, int number, int ordinal) {
  int value = 0;
  CACHALOT_TRY(
      check_call(driver, driver.device_attribute(&value, number, ordinal), "cuDeviceGetAttribute"));
  return value;
}

}  // namespace

Result<std::unique_ptr<CudaDevice>> CudaDevice::open(int ordinal) {
  if (kernel_image().empty()) {
    return Error::make(Code::kUnsupported,
                       "cuda: this library was built without kernels; expected nvcc at its build");
  }
  CACHALOT_TRY_ASSIGN(const gpu::Driver driver, gpu::load_driver());
  return open(driver, kernel_image(), ordinal);
}

Result<std::unique_ptr<CudaDevice>> CudaDevice::open(const gpu::Driver& driver,
                                                     std::span<const unsigned char> image,
                                                     int ordinal) {
  if (image.empty()) return Error::make(Code::kUnsupported, "cuda: no kernels were given");
  CACHALOT_TRY(check_call(driver, driver.init(0), "cuInit"));
  int number = 0;
  char what[48];
  std::snprintf(what, sizeof what, "cuDeviceGet of device %d", ordinal);
  CACHALOT_TRY(check_call(driver, driver.device_get(&number, ordinal), what));
  std::unique_ptr<CudaDevice> device(new CudaDevice(driver, ordinal));
  CACHALOT_TRY_ASSIGN(device->compute_major_, attribute(driver, gpu::kComputeMajor, ordinal));
  CACHALOT_TRY_ASSIGN(const int count, attribute(driver, gpu::kMultiprocessors, ordinal));
  device->multiprocessors_ = static_cast<std::uint32_t>(std::max(count, 1));
  if (device->compute_major_ < 8) {
    return Error::make(Code::kUnsupported,
                       "cuda: device %d has compute capability %d, expected 8 or later", ordinal,
                       device->compute_major_);
  }
  CACHALOT_TRY_ASSIGN(device->context_, gpu::PrimaryContext::retain(driver, ordinal));
  CACHALOT_TRY(device->load(image));
  return device;
}

Status CudaDevice::load(std::span<const unsigned char> image) {
  const Entered entered(*this);
  CACHALOT_TRY(entered.status());
  CACHALOT_TRY(check(driver_.module_load(&module_, image.data()), "cuModuleLoadData"));
  const auto find = [&](const char* name, gpu::Function& function) {
    return check(driver_.module_function(&function, module_, name), name);
  };
  CACHALOT_TRY(find("cachalot_gather", kernels_.gather));
  CACHALOT_TRY(find("cachalot_scatter", kernels_.scatter));
  if (!has_bulk_copies()) return {};
  CACHALOT_TRY(find("cachalot_gather_bulk", kernels_.gather_bulk));
  CACHALOT_TRY(find("cachalot_scatter_bulk", kernels_.scatter_bulk));
  // More than the 48 KiB that every kernel may have.
  for (const gpu::Function kernel : {kernels_.gather_bulk, kernels_.scatter_bulk}) {
    CACHALOT_TRY(check(
        driver_.set_function_attribute(kernel, gpu::kFunctionDynamicSharedBytes, kBulkSharedBytes),
        "cuFuncSetAttribute of the shared memory of a copy"));
  }
  return {};
}

// What fails here fails because the context is gone already.
CudaDevice::~CudaDevice() {
  if (context_ == nullptr) return;
  const gpu::ContextScope scope(*context_, gpu::ContextScope::Leave::kOutside);
  registered_.clear();
  if (module_ != nullptr) driver_.module_unload(module_);
}

std::string CudaDevice::name() const {
  char name[96] = "unknown device";
  driver_.device_name(name, sizeof name, ordinal_);
  return std::string(name) + " (device " + std::to_string(ordinal_) + ")";
}

Result<gpu::Stream> CudaDevice::make_stream() const {
  int least = 0, greatest = 0;
  CACHALOT_TRY(check(driver_.stream_priorities(&least, &greatest), "cuCtxGetStreamPriorityRange"));
  gpu::Stream stream = nullptr;
  CACHALOT_TRY(
      check(driver_.stream_create_with_priority(&stream, gpu::kStreamNonBlocking, greatest),
            "cuStreamCreateWithPriority"));
  return stream;
}

void CudaDevice::count(Way way, std::uint64_t bytes) {
  std::atomic<std::uint64_t>& all = way == Way::kThreads ? threads_bytes_
                                    : way == Way::kBulk  ? bulk_bytes_
                                    : way == Way::kBatch ? batch_bytes_
                                                         : copy_engine_bytes_;
  all.fetch_add(bytes, std::memory_order_relaxed);
}

WayBytes CudaDevice::way_bytes() const {
  const auto now = [](const auto& all) { return all.load(std::memory_order_relaxed); };
  return {now(threads_bytes_), now(bulk_bytes_), now(batch_bytes_), now(copy_engine_bytes_)};
}

Status CudaDevice::check(int result, const char* call) const {
  return check_call(driver_, result, call);
}

Status CudaDevice::register_pool(std::byte* at, std::uint64_t bytes, std::uint64_t most_bytes) {
  CACHALOT_TRY_ASSIGN(auto made, gpu::PoolRegistration::make(context_, at, bytes, most_bytes));
  return reach(std::move(made));
}

Status CudaDevice::share_pool(const CudaDevice& other) {
  for (const auto& registration : other.registered_) CACHALOT_TRY(reach(registration));
  return {};
}

Status CudaDevice::reach(std::shared_ptr<const gpu::PoolRegistration> registration) {
  const Entered entered(*this);
  CACHALOT_TRY(entered.status());
  Status status;
  std::size_t added = 0;
  const auto& parts = registration->parts();
  for (; status && added < parts.size(); added += status.ok()) {
    gpu::DevicePointer device = 0;
    status = check(driver_.host_device_pointer(&device, parts[added].at, 0),
                   "cuMemHostGetDevicePointer");
    if (status) status = pool_.add(parts[added].at, parts[added].bytes, device);
  }
  if (status) {
    registered_.push_back(std::move(registration));
  } else {
    while (added != 0) pool_.remove(parts[--added].at);
  }
  return status;
}

Status CudaDevice::unregister_pool(std::byte* at) {
  const auto found = std::find_if(registered_.begin(), registered_.end(),
                                  [&](const auto& each) { return each->at() == at; });
  if (found == registered_.end()) {
    return Error::make(Code::kNotFound, "cuda: pool memory at %p is not registered",
                       static_cast<void*>(at));
  }
  for (const auto& part : (*found)->parts()) pool_.remove(part.at);
  registered_.erase(found);
  return {};
}

}  // namespace cachalot::kv
