// A libcuda.so.1 of emulated GPUs: what is found by name in NVIDIA's, over the machine of testing/gpu/fake_gpu.h.
// A program that has loaded it gets it with every dlopen of libcuda.so.1, whatever is installed.
#include "fake_libcuda.h"

#include "testing/kv/fake_kernels.h"

using namespace cachalot::gpu;  // NOLINT: this file is nothing but a list

FakeMachine& fake_machine() {
  static FakeMachine* const machine = new FakeMachine;  // outlives all that may free at exit
  return *machine;
}

namespace {
const Driver& table() {
  static const Driver driver = fake_machine().driver();
  return driver;
}
}  // namespace

#define FAKE(name, member, parameters, arguments) \
  extern "C" int name parameters {                \
    return table().member arguments;              \
  }
using Size = std::size_t;
using Flags = unsigned long long;

FAKE(cuInit, init, (unsigned a), (a))
FAKE(cuGetErrorName, error_name, (int a, const char** b), (a, b))
FAKE(cuDeviceGet, device_get, (int* a, int b), (a, b))
FAKE(cuDeviceGetName, device_name, (char* a, int b, int c), (a, b, c))
FAKE(cuDeviceGetAttribute, device_attribute, (int* a, int b, int c), (a, b, c))
FAKE(cuDeviceCanAccessPeer, device_can_access_peer, (int* a, int b, int c), (a, b, c))
FAKE(cuDeviceTotalMem_v2, device_total_bytes, (Size * a, int b), (a, b))
FAKE(cuDevicePrimaryCtxRetain, primary_context_retain, (Context * a, int b), (a, b))
FAKE(cuDevicePrimaryCtxRelease_v2, primary_context_release, (int a), (a))
FAKE(cuCtxGetCurrent, context_get_current, (Context * a), (a))
FAKE(cuCtxSetCurrent, context_set_current, (Context a), (a))
FAKE(cuCtxPushCurrent_v2, context_push, (Context a), (a))
FAKE(cuCtxPopCurrent_v2, context_pop, (Context * a), (a))
FAKE(cuCtxSynchronize, context_synchronize, (), ())
FAKE(cuMemGetAllocationGranularity, granularity, (Size * a, const AllocationProperties* b, int c),
     (a, b, c))
FAKE(cuMemAddressReserve, address_reserve,
     (DevicePointer * a, Size b, Size c, DevicePointer d, Flags e), (a, b, c, d, e))
FAKE(cuMemAddressFree, address_free, (DevicePointer a, Size b), (a, b))
FAKE(cuMemCreate, create, (AllocationHandle * a, Size b, const AllocationProperties* c, Flags d),
     (a, b, c, d))
FAKE(cuMemRelease, release, (AllocationHandle a), (a))
FAKE(cuMemMap, map, (DevicePointer a, Size b, Size c, AllocationHandle d, Flags e), (a, b, c, d, e))
FAKE(cuMemUnmap, unmap, (DevicePointer a, Size b), (a, b))
FAKE(cuMemSetAccess, set_access, (DevicePointer a, Size b, const AccessDescription* c, Size d),
     (a, b, c, d))
FAKE(cuEventCreate, event_create, (Event * a, unsigned b), (a, b))
FAKE(cuEventDestroy_v2, event_destroy, (Event a), (a))
FAKE(cuEventRecord, event_record, (Event a, Stream b), (a, b))
FAKE(cuEventQuery, event_query, (Event a), (a))
FAKE(cuEventSynchronize, event_synchronize, (Event a), (a))
FAKE(cuStreamGetCtx, stream_context, (Stream a, Context* b), (a, b))
FAKE(cuStreamIsCapturing, stream_is_capturing, (Stream a, int* b), (a, b))
FAKE(cuThreadExchangeStreamCaptureMode, exchange_capture_mode, (int* a), (a))

// For tests in Python, and for scripts.
extern "C" int cuDeviceGetCount(int* count) {
  *count = fake_machine().devices;
  return kSuccess;
}
extern "C" int cuDriverGetVersion(int* version) {
  *version = 13'000;
  return kSuccess;
}
extern "C" void fake_set_memory_bytes(unsigned long long bytes) {
  fake_machine().memory_bytes = bytes;
}
extern "C" void fake_set_devices(int devices) {
  fake_machine().devices = devices;
}
extern "C" void fake_adopt(void* memory, unsigned long long bytes, int device) {
  fake_machine().adopt(memory, bytes, device);
}
// What a function of the driver's table returns from now on; 0: it works again.
extern "C" void fake_fail(const char* function, int result) {
  fake_machine().failing[function] = result;
}
extern "C" void fake_add_copy_kernels() {
  cachalot::kv::add_kernels(fake_machine());
}
extern "C" unsigned long long fake_used_bytes() {
  return fake_machine().used_bytes();
}
extern "C" unsigned long long fake_refused() {
  return fake_machine().refused + fake_machine().without_context + fake_machine().of_another_device;
}
FAKE(cuMemAlloc_v2, memory_allocate, (DevicePointer * a, Size b), (a, b))
FAKE(cuMemFree_v2, memory_free, (DevicePointer a), (a))
FAKE(cuPointerGetAttribute, pointer_attribute, (void* a, int b, DevicePointer c), (a, b, c))
FAKE(cuMemHostAlloc, host_allocate, (void** a, Size b, unsigned c), (a, b, c))
FAKE(cuMemFreeHost, host_free, (void* a), (a))
FAKE(cuMemHostRegister_v2, host_register, (void* a, Size b, unsigned c), (a, b, c))
FAKE(cuMemHostUnregister, host_unregister, (void* a), (a))
FAKE(cuMemHostGetDevicePointer_v2, host_device_pointer, (DevicePointer * a, void* b, unsigned c),
     (a, b, c))
FAKE(cuStreamCreate, stream_create, (Stream * a, unsigned b), (a, b))
FAKE(cuStreamCreateWithPriority, stream_create_with_priority, (Stream * a, unsigned b, int c),
     (a, b, c))
FAKE(cuCtxGetStreamPriorityRange, stream_priorities, (int* a, int* b), (a, b))
FAKE(cuStreamDestroy_v2, stream_destroy, (Stream a), (a))
FAKE(cuStreamSynchronize, stream_synchronize, (Stream a), (a))
FAKE(cuStreamWaitEvent, stream_wait_event, (Stream a, Event b, unsigned c), (a, b, c))
FAKE(cuModuleLoadData, module_load, (Module * a, const void* b), (a, b))
FAKE(cuModuleUnload, module_unload, (Module a), (a))
FAKE(cuModuleGetFunction, module_function, (Function * a, Module b, const char* c), (a, b, c))
FAKE(cuFuncSetAttribute, set_function_attribute, (Function a, int b, int c), (a, b, c))
FAKE(cuLaunchKernel, launch,
     (Function a, unsigned b, unsigned c, unsigned d, unsigned e, unsigned f, unsigned g,
      unsigned h, Stream i, void** j, void** k),
     (a, b, c, d, e, f, g, h, i, j, k))
FAKE(cuMemcpyAsync, copy, (DevicePointer a, DevicePointer b, Size c, Stream d), (a, b, c, d))
FAKE(cuMemcpyHtoDAsync_v2, copy_to_device, (DevicePointer a, const void* b, Size c, Stream d),
     (a, b, c, d))
FAKE(cuMemcpyBatchAsync, copy_batch,
     (DevicePointer * a, DevicePointer* b, Size* c, Size d, CopyAttributes* e, Size* f, Size g,
      Size* h, Stream i),
     (a, b, c, d, e, f, g, h, i))
