// What is used of NVIDIA's driver: a table of functions that is filled at run time, so that one binary
// runs with and without a GPU, and a test can fill it with an emulation.
//
// Types and numbers are the binary interface of libcuda.so.1 as the CUDA driver API's reference
// documents it, under names of our own; where NVIDIA's header is at hand, driver_header_test.cpp
// compares them with it when it is compiled. Only what the modules above pass is here: vmm the memory,
// kv the rest.
//
// @source CUDA driver API reference: virtual memory management, device management, primary contexts,
//         memory, streams, stream capture, events, modules, execution control
#pragma once

#include <cachalot/result.h>

#include <cstddef>
#include <cstdint>

namespace cachalot::gpu {

// CUresult
inline constexpr int kSuccess = 0;
inline constexpr int kInvalidValue = 1;
inline constexpr int kOutOfMemory = 2;
inline constexpr int kDeinitialized = 4;  // the process ends, and the driver has ended before
inline constexpr int kNoDevice = 100;
inline constexpr int kInvalidDevice = 101;
inline constexpr int kInvalidContext = 201;
inline constexpr int kInvalidHandle = 400;
inline constexpr int kNotReady = 600;
inline constexpr int kContextIsDestroyed = 709;
inline constexpr int kAlreadyRegistered = 712;
inline constexpr int kNotPermitted = 800;
inline constexpr int kNotSupported = 801;
inline constexpr int kFirstOfCapture = 900, kLastOfCapture = 908;  // what a capture forbids
inline constexpr int kCaptureImplicit = 906;  // the legacy stream, while another one is captured

// CUdevice_attribute
inline constexpr int kMultiprocessors = 16;
inline constexpr int kMostSharedBytes = 97;  // of a thread block whose kernel has asked for them
inline constexpr int kComputeMajor = 75;
inline constexpr int kHasVirtualMemory = 102;
inline constexpr int kHasRdmaWithVirtualMemory = 110;

// CUfunction_attribute: how many bytes of dynamic shared memory a launch may have; 48 KiB without
inline constexpr int kFunctionDynamicSharedBytes = 8;

// CUpointer_attribute: an int, the device that the memory is on
inline constexpr int kPointerDevice = 9;

using DevicePointer = unsigned long long;     // CUdeviceptr
using AllocationHandle = unsigned long long;  // CUmemGenericAllocationHandle
using Context = void*;                        // CUcontext
using Stream = void*;                         // CUstream; null: the legacy default stream
using Event = void*;                          // CUevent
using Module = void*;                         // CUmodule
using Function = void*;                       // CUfunction

// CUmemLocation; type 1: a device, by its ordinal
struct Location {
  int type = 1;
  int id = 0;
};

// CUmemAllocationProp
struct AllocationProperties {
  int type = 1;  // CU_MEM_ALLOCATION_TYPE_PINNED
  int export_types = 0;
  Location location;
  void* windows_only = nullptr;
  unsigned char compression = 0;
  unsigned char rdma_capable = 0;
  unsigned short usage = 0;
  unsigned char reserved[4] = {};
};
static_assert(sizeof(AllocationProperties) == 32);
static_assert(offsetof(AllocationProperties, location) == 8);
static_assert(offsetof(AllocationProperties, rdma_capable) == 25);

// CUmemAccessDesc
struct AccessDescription {
  Location location;
  int flags = 0;  // 0: none, 1: read, 3: read and write
};
static_assert(sizeof(AccessDescription) == 12);

inline constexpr int kCaptureRelaxed = 2;          // CU_STREAM_CAPTURE_MODE_RELAXED
inline constexpr unsigned kHostPortable = 1;       // CU_MEMHOSTREGISTER_, CU_MEMHOSTALLOC_PORTABLE
inline constexpr unsigned kHostDeviceMap = 2;      // ..._DEVICEMAP
inline constexpr unsigned kStreamNonBlocking = 1;  // CU_STREAM_NON_BLOCKING
inline constexpr unsigned kEventBlockingSync = 1;  // CU_EVENT_BLOCKING_SYNC
inline constexpr unsigned kEventNoTiming = 2;      // CU_EVENT_DISABLE_TIMING

// CU_STREAM_LEGACY: the legacy default stream by another name.
inline constexpr std::uintptr_t kLegacyStream = 1;
inline bool is_legacy(Stream stream) {
  return stream == nullptr || reinterpret_cast<std::uintptr_t>(stream) == kLegacyStream;
}

// CUmemcpySrcAccessOrder: when a copy of a batch may read its source
inline constexpr int kSourceStreamOrder = 1;  // when the stream gets there
inline constexpr int kSourceAnyOrder = 3;     // from the call on
// CU_MEMCPY_FLAG_PREFER_OVERLAP_WITH_COMPUTE: a hint, that copies take no multiprocessor (CUDA 13.1)
inline constexpr unsigned kBesideKernels = 1;

// CUmemcpyAttributes. Hints are for managed memory; type 0: none.
struct CopyAttributes {
  int order = kSourceStreamOrder;
  Location source_hint{0, 0}, target_hint{0, 0};
  unsigned flags = kBesideKernels;
};
static_assert(sizeof(CopyAttributes) == 24);
// What copy_batch() says failed when no one copy did.
inline constexpr std::size_t kNoCopy = ~std::size_t{0};

struct Driver {
  int (*init)(unsigned flags);
  int (*error_name)(int result, const char** name);
  int (*device_get)(int* device, int ordinal);
  int (*device_name)(char* name, int bytes, int device);
  int (*device_attribute)(int* value, int attribute, int device);
  int (*device_can_access_peer)(int* can, int device, int peer);
  int (*primary_context_retain)(Context* context, int device);
  int (*primary_context_release)(int device);
  int (*context_get_current)(Context* context);
  int (*context_set_current)(Context context);
  int (*granularity)(std::size_t* bytes, const AllocationProperties* properties, int which);
  int (*address_reserve)(DevicePointer* at, std::size_t bytes, std::size_t alignment,
                         DevicePointer wanted, unsigned long long flags);
  int (*address_free)(DevicePointer at, std::size_t bytes);
  int (*create)(AllocationHandle* handle, std::size_t bytes, const AllocationProperties* properties,
                unsigned long long flags);
  int (*release)(AllocationHandle handle);
  int (*map)(DevicePointer at, std::size_t bytes, std::size_t offset, AllocationHandle handle,
             unsigned long long flags);
  int (*unmap)(DevicePointer at, std::size_t bytes);
  int (*set_access)(DevicePointer at, std::size_t bytes, const AccessDescription* access,
                    std::size_t count);

  int (*device_total_bytes)(std::size_t* bytes, int device);
  int (*context_push)(Context context);
  int (*context_pop)(Context* context);
  int (*context_synchronize)();
  int (*memory_allocate)(DevicePointer* at, std::size_t bytes);
  int (*memory_free)(DevicePointer at);
  int (*pointer_attribute)(void* value, int attribute, DevicePointer at);
  int (*host_allocate)(void** at, std::size_t bytes, unsigned flags);
  int (*host_free)(void* at);
  int (*host_register)(void* at, std::size_t bytes, unsigned flags);
  int (*host_unregister)(void* at);
  int (*host_device_pointer)(DevicePointer* at, void* host, unsigned flags);
  int (*stream_create)(Stream* stream, unsigned flags);
  int (*stream_create_with_priority)(Stream* stream, unsigned flags, int priority);
  int (*stream_priorities)(int* least, int* greatest);  // greatest: the smaller number
  int (*stream_destroy)(Stream stream);
  int (*stream_synchronize)(Stream stream);
  int (*stream_wait_event)(Stream stream, Event event, unsigned flags);  // flags: 0
  int (*event_create)(Event* event, unsigned flags);
  int (*event_destroy)(Event event);
  int (*event_record)(Event event, Stream stream);
  int (*event_query)(Event event);
  int (*event_synchronize)(Event event);
  int (*stream_context)(Stream stream, Context* context);
  int (*stream_is_capturing)(Stream stream, int* state);  // 0: it is not
  int (*exchange_capture_mode)(int* mode);                // of the calling thread
  int (*module_load)(Module* module, const void* image);
  int (*module_unload)(Module module);
  int (*module_function)(Function* function, Module module, const char* name);
  int (*set_function_attribute)(Function function, int attribute, int value);
  int (*launch)(Function function, unsigned grid_x, unsigned grid_y, unsigned grid_z,
                unsigned block_x, unsigned block_y, unsigned block_z, unsigned shared_bytes,
                Stream stream, void** parameters, void** extra);
  int (*copy)(DevicePointer to, DevicePointer from, std::size_t bytes, Stream stream);
  int (*copy_to_device)(DevicePointer to, const void* from, std::size_t bytes, Stream stream);
  // Null in drivers before CUDA 12.8. Not on the legacy stream: it is refused there. `failed`: which copy was
  // refused. CUDA 13 has another function without it, cuMemcpyBatchAsync_v2, and keeps this one.
  int (*copy_batch)(DevicePointer* to, DevicePointer* from, std::size_t* bytes, std::size_t count,
                    CopyAttributes* attributes, std::size_t* attribute_starts,
                    std::size_t attribute_count, std::size_t* failed, Stream stream);
};

// Opens the library and finds all of the table. It stays open: functions of it may run at exit.
// @errors kUnsupported: no such library, or one without these functions
Result<Driver> load_driver(const char* library = "libcuda.so.1");

// The error for a call that did not succeed: kNoSpace, kUnsupported, kPermission, kInternal (a value
// that this module should not have passed), else kIo. `detail` has the driver's number.
Error driver_error(const Driver& driver, int result, const char* what);
// {} or that error.
Status check_call(const Driver& driver, int result, const char* what);

}  // namespace cachalot::gpu
