#include "gpu/driver.h"

#include <dlfcn.h>

namespace cachalot::gpu {
namespace {

// Finds functions until one is missing, and remembers which.
class Symbols {
 public:
  explicit Symbols(void* library) : library_(library) {}
  template <class Function>
  void find(const char* name, Function** function) {
    void* const symbol = dlsym(library_, name);
    if (symbol == nullptr && missing_ == nullptr) missing_ = name;
    *function = reinterpret_cast<Function*>(symbol);
  }
  // One that newer drivers have: null where it is missing.
  template <class Function>
  void find_newer(const char* name, Function** function) {
    *function = reinterpret_cast<Function*>(dlsym(library_, name));
  }
  const char* missing() const { return missing_; }

 private:
  void* library_;
  const char* missing_ = nullptr;
};

Code code_of(int result) {
  switch (result) {
    case kOutOfMemory:
      return Code::kNoSpace;
    case kNoDevice:
    case kNotSupported:
      return Code::kUnsupported;
    case kNotPermitted:
      return Code::kPermission;
    case kInvalidDevice:
      return Code::kInvalidArgument;
    case kInvalidValue:
      return Code::kInternal;
    default:
      return Code::kIo;
  }
}

}  // namespace

Result<Driver> load_driver(const char* library) {
  void* const opened = dlopen(library, RTLD_NOW | RTLD_LOCAL);
  if (opened == nullptr) {
    return Error::make(Code::kUnsupported, "cuda: %.160s; expected an NVIDIA driver", dlerror());
  }
  Driver driver{};
  Symbols symbols(opened);
  symbols.find("cuInit", &driver.init);
  symbols.find("cuGetErrorName", &driver.error_name);
  symbols.find("cuDeviceGet", &driver.device_get);
  symbols.find("cuDeviceGetName", &driver.device_name);
  symbols.find("cuDeviceGetAttribute", &driver.device_attribute);
  symbols.find("cuDeviceCanAccessPeer", &driver.device_can_access_peer);
  symbols.find("cuDevicePrimaryCtxRetain", &driver.primary_context_retain);
  symbols.find("cuDevicePrimaryCtxRelease_v2", &driver.primary_context_release);
  symbols.find("cuCtxGetCurrent", &driver.context_get_current);
  symbols.find("cuCtxSetCurrent", &driver.context_set_current);
  symbols.find("cuMemGetAllocationGranularity", &driver.granularity);
  symbols.find("cuMemAddressReserve", &driver.address_reserve);
  symbols.find("cuMemAddressFree", &driver.address_free);
  symbols.find("cuMemCreate", &driver.create);
  symbols.find("cuMemRelease", &driver.release);
  symbols.find("cuMemMap", &driver.map);
  symbols.find("cuMemUnmap", &driver.unmap);
  symbols.find("cuMemSetAccess", &driver.set_access);
  symbols.find("cuDeviceTotalMem_v2", &driver.device_total_bytes);
  symbols.find("cuCtxPushCurrent_v2", &driver.context_push);
  symbols.find("cuCtxPopCurrent_v2", &driver.context_pop);
  symbols.find("cuCtxSynchronize", &driver.context_synchronize);
  symbols.find("cuMemAlloc_v2", &driver.memory_allocate);
  symbols.find("cuMemFree_v2", &driver.memory_free);
  symbols.find("cuPointerGetAttribute", &driver.pointer_attribute);
  symbols.find("cuMemHostAlloc", &driver.host_allocate);
  symbols.find("cuMemFreeHost", &driver.host_free);
  symbols.find("cuMemHostRegister_v2", &driver.host_register);
  symbols.find("cuMemHostUnregister", &driver.host_unregister);
  symbols.find("cuMemHostGetDevicePointer_v2", &driver.host_device_pointer);
  symbols.find("cuStreamCreate", &driver.stream_create);
  symbols.find("cuStreamCreateWithPriority", &driver.stream_create_with_priority);
  symbols.find("cuCtxGetStreamPriorityRange", &driver.stream_priorities);
  symbols.find("cuStreamDestroy_v2", &driver.stream_destroy);
  symbols.find("cuStreamSynchronize", &driver.stream_synchronize);
  symbols.find("cuStreamWaitEvent", &driver.stream_wait_event);
  symbols.find("cuEventCreate", &driver.event_create);
  symbols.find("cuEventDestroy_v2", &driver.event_destroy);
  symbols.find("cuEventRecord", &driver.event_record);
  symbols.find("cuEventQuery", &driver.event_query);
  symbols.find("cuEventSynchronize", &driver.event_synchronize);
  symbols.find("cuStreamGetCtx", &driver.stream_context);
  symbols.find("cuStreamIsCapturing", &driver.stream_is_capturing);
  symbols.find("cuThreadExchangeStreamCaptureMode", &driver.exchange_capture_mode);
  symbols.find("cuModuleLoadData", &driver.module_load);
  symbols.find("cuModuleUnload", &driver.module_unload);
  symbols.find("cuModuleGetFunction", &driver.module_function);
  symbols.find("cuFuncSetAttribute", &driver.set_function_attribute);
  symbols.find("cuLaunchKernel", &driver.launch);
  symbols.find("cuMemcpyAsync", &driver.copy);
  symbols.find("cuMemcpyHtoDAsync_v2", &driver.copy_to_device);
  symbols.find_newer("cuMemcpyBatchAsync", &driver.copy_batch);
  if (symbols.missing() == nullptr) return driver;
  const Error error = Error::make(Code::kUnsupported,
                                  "cuda: %.80s has no %s; expected a driver of CUDA 11 or later",
                                  library, symbols.missing());
  dlclose(opened);
  return error;
}

Error driver_error(const Driver& driver, int result, const char* what) {
  const char* name = nullptr;
  if (driver.error_name(result, &name) != kSuccess || name == nullptr) name = "unknown";
  Error error = Error::make(code_of(result), "%.160s: %s (%d)", what, name, result);
  error.detail = static_cast<std::uint64_t>(result);
  return error;
}

Status check_call(const Driver& driver, int result, const char* what) {
  return result == kSuccess ? Status() : Status(driver_error(driver, result, what));
}

}  // namespace cachalot::gpu
