#include "kv/cuda/cuda_device.h"

#include <algorithm>
#include <cstdio>

#include "kv/cuda/kernel_image.h"

namespace cachalot::kv {
namespace {

Status check_call(const cuda::Driver& driver, int result, const char* call) {
  if (result == cuda::kSuccess) return {};
  return cuda::driver_error(driver, result, call);
}

Result<int> attribute(const cuda::Driver& driver, int number, int ordinal) {
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
  CACHALOT_TRY_ASSIGN(const cuda::Driver driver, cuda::load_driver());
  return open(driver, kernel_image(), ordinal);
}

Result<std::unique_ptr<CudaDevice>> CudaDevice::open(const cuda::Driver& driver,
                                                     std::span<const unsigned char> image,
                                                     int ordinal) {
  if (image.empty()) return Error::make(Code::kUnsupported, "cuda: no kernels were given");
  CACHALOT_TRY(check_call(driver, driver.init(0), "cuInit"));
  int number = 0;
  char what[48];
  std::snprintf(what, sizeof what, "cuDeviceGet of device %d", ordinal);
  CACHALOT_TRY(check_call(driver, driver.device_get(&number, ordinal), what));
  std::unique_ptr<CudaDevice> device(new CudaDevice(driver, ordinal));
  CACHALOT_TRY_ASSIGN(device->compute_major_, attribute(driver, cuda::kComputeMajor, ordinal));
  CACHALOT_TRY_ASSIGN(const int count, attribute(driver, cuda::kMultiprocessors, ordinal));
  device->multiprocessors_ = static_cast<std::uint32_t>(std::max(count, 1));
  if (device->compute_major_ < 8) {
    return Error::make(Code::kUnsupported,
                       "cuda: device %d has compute capability %d, expected 8 or later", ordinal,
                       device->compute_major_);
  }
  cuda::Context context = nullptr;
  CACHALOT_TRY(check_call(driver, driver.primary_context_retain(&context, ordinal),
                          "cuDevicePrimaryCtxRetain"));
  device->context_ = context;
  CACHALOT_TRY(device->load(image));
  return device;
}

Status CudaDevice::load(std::span<const unsigned char> image) {
  const Entered entered(*this);
  CACHALOT_TRY(entered.status());
  CACHALOT_TRY(check(driver_.module_load(&module_, image.data()), "cuModuleLoadData"));
  const auto find = [&](const char* name, cuda::Function& function) {
    return check(driver_.module_function(&function, module_, name), name);
  };
  CACHALOT_TRY(find("cachalot_gather", kernels_.gather));
  CACHALOT_TRY(find("cachalot_scatter", kernels_.scatter));
  if (!has_bulk_copies()) return {};
  CACHALOT_TRY(find("cachalot_gather_bulk", kernels_.gather_bulk));
  return find("cachalot_scatter_bulk", kernels_.scatter_bulk);
}

// What fails here fails because the context is gone already.
CudaDevice::~CudaDevice() {
  if (context_ == nullptr) return;
  {
    const Entered entered(*this);
    for (std::byte* const at : registered_) driver_.host_unregister(at);
    if (module_ != nullptr) driver_.module_unload(module_);
  }
  driver_.primary_context_release(ordinal_);
}

std::string CudaDevice::name() const {
  char name[96] = "unknown device";
  driver_.device_name(name, sizeof name, ordinal_);
  return std::string(name) + " (device " + std::to_string(ordinal_) + ")";
}

Status CudaDevice::check(int result, const char* call) const {
  return check_call(driver_, result, call);
}

Status CudaDevice::register_pool(std::byte* at, std::uint64_t bytes) {
  const Entered entered(*this);
  CACHALOT_TRY(entered.status());
  const int result = driver_.host_register(at, bytes, cuda::kHostPortable | cuda::kHostDeviceMap);
  if (result == cuda::kAlreadyRegistered) {
    return Error::make(Code::kInvalidArgument,
                       "cuda: pool memory at %p is registered with the device already",
                       static_cast<void*>(at));
  }
  CACHALOT_TRY(check(result, "cuMemHostRegister"));
  cuda::DevicePointer device = 0;
  Status status = check(driver_.host_device_pointer(&device, at, 0), "cuMemHostGetDevicePointer");
  if (status) status = pool_.add(at, bytes, device);
  if (!status) {
    driver_.host_unregister(at);
    return status;
  }
  registered_.push_back(at);
  return {};
}

Status CudaDevice::unregister_pool(std::byte* at) {
  const auto found = std::find(registered_.begin(), registered_.end(), at);
  if (found == registered_.end()) {
    return Error::make(Code::kNotFound, "cuda: pool memory at %p is not registered",
                       static_cast<void*>(at));
  }
  const Entered entered(*this);
  CACHALOT_TRY(entered.status());
  pool_.remove(at);
  registered_.erase(found);
  return check(driver_.host_unregister(at), "cuMemHostUnregister");
}

CudaDevice::Entered::Entered(const CudaDevice& device) : device_(device) {
  status_ = device.check(device.driver_.context_get_current(&before_), "cuCtxGetCurrent");
  if (status_ && before_ != device.context_) {
    status_ = device.check(device.driver_.context_set_current(device.context_), "cuCtxSetCurrent");
    changed_ = status_.ok();
  }
  if (status_) device.driver_.exchange_capture_mode(&capture_mode_);
}

// A thread that had no context keeps this one, as with the runtime's own calls.
CudaDevice::Entered::~Entered() {
  if (status_) device_.driver_.exchange_capture_mode(&capture_mode_);
  if (changed_ && before_ != nullptr) device_.driver_.context_set_current(before_);
}

}  // namespace cachalot::kv
