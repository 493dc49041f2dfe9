// The driver's table beside NVIDIA's own header, where there is one: the names that are looked up, the
// numbers, and the sizes of what is passed. Nothing is called.
#include <cuda.h>
#include <cudaTypedefs.h>
#include <gtest/gtest.h>

#include "gpu/driver.h"

namespace cachalot::gpu {
namespace {

// Whether two functions take arguments of the same number and sizes.
template <class Ours, class Theirs>
struct Same;
template <class A, class... Ours, class B, class... Theirs>
struct Same<A (*)(Ours...), B (*)(Theirs...)> {
  static constexpr bool value() {
    if constexpr (sizeof...(Ours) != sizeof...(Theirs)) {
      return false;
    } else {
      return sizeof(A) == sizeof(B) && ((sizeof(Ours) == sizeof(Theirs)) && ...);
    }
  }
};
#define EXPECT_SAME(member, function) \
  static_assert(Same<decltype(Driver::member), decltype(&function)>::value(), #function)

EXPECT_SAME(init, cuInit);
EXPECT_SAME(error_name, cuGetErrorName);
EXPECT_SAME(device_get, cuDeviceGet);
EXPECT_SAME(device_name, cuDeviceGetName);
EXPECT_SAME(device_attribute, cuDeviceGetAttribute);
EXPECT_SAME(device_can_access_peer, cuDeviceCanAccessPeer);
EXPECT_SAME(primary_context_retain, cuDevicePrimaryCtxRetain);
EXPECT_SAME(primary_context_release, cuDevicePrimaryCtxRelease);
EXPECT_SAME(context_get_current, cuCtxGetCurrent);
EXPECT_SAME(context_set_current, cuCtxSetCurrent);
EXPECT_SAME(granularity, cuMemGetAllocationGranularity);
EXPECT_SAME(address_reserve, cuMemAddressReserve);
EXPECT_SAME(address_free, cuMemAddressFree);
EXPECT_SAME(create, cuMemCreate);
EXPECT_SAME(release, cuMemRelease);
EXPECT_SAME(map, cuMemMap);
EXPECT_SAME(unmap, cuMemUnmap);
EXPECT_SAME(set_access, cuMemSetAccess);
EXPECT_SAME(memory_allocate, cuMemAlloc);
EXPECT_SAME(memory_free, cuMemFree);
EXPECT_SAME(pointer_attribute, cuPointerGetAttribute);
EXPECT_SAME(host_allocate, cuMemHostAlloc);
EXPECT_SAME(host_free, cuMemFreeHost);
EXPECT_SAME(host_register, cuMemHostRegister);
EXPECT_SAME(host_unregister, cuMemHostUnregister);
EXPECT_SAME(host_device_pointer, cuMemHostGetDevicePointer);
EXPECT_SAME(stream_create, cuStreamCreate);
EXPECT_SAME(stream_create_with_priority, cuStreamCreateWithPriority);
EXPECT_SAME(stream_priorities, cuCtxGetStreamPriorityRange);
EXPECT_SAME(stream_destroy, cuStreamDestroy);
EXPECT_SAME(stream_synchronize, cuStreamSynchronize);
EXPECT_SAME(stream_wait_event, cuStreamWaitEvent);
EXPECT_SAME(stream_context, cuStreamGetCtx);
EXPECT_SAME(event_create, cuEventCreate);
EXPECT_SAME(event_destroy, cuEventDestroy);
EXPECT_SAME(event_record, cuEventRecord);
EXPECT_SAME(event_query, cuEventQuery);
EXPECT_SAME(event_synchronize, cuEventSynchronize);
EXPECT_SAME(module_load, cuModuleLoadData);
EXPECT_SAME(module_unload, cuModuleUnload);
EXPECT_SAME(module_function, cuModuleGetFunction);
EXPECT_SAME(set_function_attribute, cuFuncSetAttribute);
EXPECT_SAME(launch, cuLaunchKernel);
EXPECT_SAME(copy, cuMemcpyAsync);
EXPECT_SAME(copy_to_device, cuMemcpyHtoDAsync);
static_assert(Same<decltype(Driver::copy_batch), PFN_cuMemcpyBatchAsync_v12080>::value());

#define NAME_OF(function) #function
// Where the header gives a function another name, that is the one to look up.
#define NAME(function) NAME_OF(function)

TEST(DriverHeader, NamesAreThoseOfTheNewestVersionsThatWeLookUp) {
  EXPECT_STREQ(NAME(cuDevicePrimaryCtxRelease), "cuDevicePrimaryCtxRelease_v2");
  EXPECT_STREQ(NAME(cuMemAlloc), "cuMemAlloc_v2");
  EXPECT_STREQ(NAME(cuMemFree), "cuMemFree_v2");
  EXPECT_STREQ(NAME(cuPointerGetAttribute), "cuPointerGetAttribute");
  EXPECT_STREQ(NAME(cuMemHostAlloc), "cuMemHostAlloc");
  EXPECT_STREQ(NAME(cuMemFreeHost), "cuMemFreeHost");
  EXPECT_STREQ(NAME(cuMemHostRegister), "cuMemHostRegister_v2");
  EXPECT_STREQ(NAME(cuMemHostUnregister), "cuMemHostUnregister");
  EXPECT_STREQ(NAME(cuMemHostGetDevicePointer), "cuMemHostGetDevicePointer_v2");
  EXPECT_STREQ(NAME(cuStreamCreate), "cuStreamCreate");
  EXPECT_STREQ(NAME(cuStreamCreateWithPriority), "cuStreamCreateWithPriority");
  EXPECT_STREQ(NAME(cuCtxGetStreamPriorityRange), "cuCtxGetStreamPriorityRange");
  EXPECT_STREQ(NAME(cuStreamDestroy), "cuStreamDestroy_v2");
  EXPECT_STREQ(NAME(cuStreamSynchronize), "cuStreamSynchronize");
  EXPECT_STREQ(NAME(cuStreamWaitEvent), "cuStreamWaitEvent");
  EXPECT_STREQ(NAME(cuStreamGetCtx), "cuStreamGetCtx");
  EXPECT_STREQ(NAME(cuEventCreate), "cuEventCreate");
  EXPECT_STREQ(NAME(cuEventDestroy), "cuEventDestroy_v2");
  EXPECT_STREQ(NAME(cuEventRecord), "cuEventRecord");
  EXPECT_STREQ(NAME(cuModuleLoadData), "cuModuleLoadData");
  EXPECT_STREQ(NAME(cuFuncSetAttribute), "cuFuncSetAttribute");
  EXPECT_STREQ(NAME(cuLaunchKernel), "cuLaunchKernel");
  EXPECT_STREQ(NAME(cuMemcpyAsync), "cuMemcpyAsync");
  EXPECT_STREQ(NAME(cuMemcpyHtoDAsync), "cuMemcpyHtoDAsync_v2");
  // Not the newest: the first one, of CUDA 12.8, says which copy was refused.
  EXPECT_STREQ(NAME(cuMemcpyBatchAsync),
               CUDA_VERSION < 13000 ? "cuMemcpyBatchAsync" : "cuMemcpyBatchAsync_v2");
}

TEST(DriverHeader, NumbersAndSizesAreTheHeaders) {
  EXPECT_EQ(kInvalidValue, CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(kOutOfMemory, CUDA_ERROR_OUT_OF_MEMORY);
  EXPECT_EQ(kNoDevice, CUDA_ERROR_NO_DEVICE);
  EXPECT_EQ(kInvalidDevice, CUDA_ERROR_INVALID_DEVICE);
  EXPECT_EQ(kInvalidHandle, CUDA_ERROR_INVALID_HANDLE);
  EXPECT_EQ(kNotReady, CUDA_ERROR_NOT_READY);
  EXPECT_EQ(kFirstOfCapture, CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
  EXPECT_EQ(kLastOfCapture, CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD);
  EXPECT_EQ(kContextIsDestroyed, CUDA_ERROR_CONTEXT_IS_DESTROYED);
  EXPECT_EQ(kAlreadyRegistered, CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED);
  EXPECT_EQ(kNotPermitted, CUDA_ERROR_NOT_PERMITTED);
  EXPECT_EQ(kNotSupported, CUDA_ERROR_NOT_SUPPORTED);
  EXPECT_EQ(kMultiprocessors, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT);
  EXPECT_EQ(kComputeMajor, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR);
  EXPECT_EQ(kHasVirtualMemory, CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED);
  EXPECT_EQ(kHasRdmaWithVirtualMemory, CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED);
  EXPECT_EQ(kMostSharedBytes, CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN);
  EXPECT_EQ(kFunctionDynamicSharedBytes, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES);
  EXPECT_EQ(kPointerDevice, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL);
  EXPECT_EQ(kHostPortable, unsigned{CU_MEMHOSTREGISTER_PORTABLE});
  EXPECT_EQ(kHostPortable, unsigned{CU_MEMHOSTALLOC_PORTABLE});
  EXPECT_EQ(kHostDeviceMap, unsigned{CU_MEMHOSTREGISTER_DEVICEMAP});
  EXPECT_EQ(kStreamNonBlocking, unsigned{CU_STREAM_NON_BLOCKING});
  EXPECT_EQ(kEventBlockingSync, unsigned{CU_EVENT_BLOCKING_SYNC});
  EXPECT_EQ(kEventNoTiming, unsigned{CU_EVENT_DISABLE_TIMING});
  EXPECT_EQ(sizeof(Location), sizeof(CUmemLocation));
  EXPECT_EQ(Location{}.type, CU_MEM_LOCATION_TYPE_DEVICE);
  EXPECT_EQ(sizeof(AllocationProperties), sizeof(CUmemAllocationProp));
  EXPECT_EQ(offsetof(AllocationProperties, rdma_capable),
            offsetof(CUmemAllocationProp, allocFlags.gpuDirectRDMACapable));
  EXPECT_EQ(sizeof(AccessDescription), sizeof(CUmemAccessDesc));
  EXPECT_EQ(sizeof(CopyAttributes), sizeof(CUmemcpyAttributes));
  EXPECT_EQ(offsetof(CopyAttributes, target_hint), offsetof(CUmemcpyAttributes, dstLocHint));
  EXPECT_EQ(kSourceStreamOrder, CU_MEMCPY_SRC_ACCESS_ORDER_STREAM);
  EXPECT_EQ(kSourceAnyOrder, CU_MEMCPY_SRC_ACCESS_ORDER_ANY);
  EXPECT_EQ(kBesideKernels, unsigned{CU_MEMCPY_FLAG_PREFER_OVERLAP_WITH_COMPUTE});
  EXPECT_EQ(CopyAttributes{}.source_hint.type, CU_MEM_LOCATION_TYPE_INVALID);
  EXPECT_EQ(reinterpret_cast<CUstream>(kLegacyStream), CU_STREAM_LEGACY);
}

}  // namespace
}  // namespace cachalot::gpu
