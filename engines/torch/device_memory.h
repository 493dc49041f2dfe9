// A GPU's memory as PyTorch asks for it: a stitching allocator on the device's driver, called by any
// thread with any context.
//
// 1. Memory that was freed may still be used by work that its streams have by then: the stream that it was
//    allocated on gets it at once, another one when an event says so.
// 2. Out of memory is said only after everything that is cached was given back.
// 3. When the driver has ended, as the process is about to, frees do nothing and nothing is allocated.
//
// @threads any
#pragma once

#include <cachalot/result.h>

#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include "device_memory/cuda/cuda_backend.h"
#include "gpu/cuda_stream_events.h"
#include "gpu/device_scope.h"
#include "graph_pools.h"
#include "settings.h"
#include "stitch/stitch_allocator.h"

namespace cachalot::torch {

class DeviceMemory {
 public:
  // @param  driver  outlives it
  // @errors as CudaBackend::open; kInvalidArgument: the settings
  static Result<std::unique_ptr<DeviceMemory>> open(const gpu::Driver& driver, int device,
                                                    const Settings& settings);
  ~DeviceMemory();
  DeviceMemory(const DeviceMemory&) = delete;
  DeviceMemory& operator=(const DeviceMemory&) = delete;

  // At least so many bytes, aligned to 512; 0 bytes get an address of their own.
  // @errors kNoSpace: out of memory; of the driver
  // @cost   0.3 us where the request was seen before, and three calls of the driver that do not reach the
  //         device; what it takes to create and map memory where not
  Result<device_memory::Address> allocate(std::uint64_t bytes, gpu::StreamId stream);
  // @param  stream  the last that used it, as far as the caller knows
  // @errors kInvalidArgument: not allocated here; of the driver: the memory stays used
  Status free(device_memory::Address address, gpu::StreamId stream);
  // As cudaFree(): waits for all work of the device, and gives what is not used back to it. For memory in
  // which a cache above has put tensors of any stream.
  Status free_and_give_back(device_memory::Address address);
  // Another stream uses it, too. @errors kInvalidArgument: not allocated here
  Status use_on(device_memory::Address address, gpu::StreamId stream);
  // Releases unused memory to the device. @cost  waits for the device
  Status release_cached();

  // No more than this share of the device, nor than the settings' limit.
  // @errors kInvalidArgument: not from 0 to 1
  Status limit_to(double fraction);

  void begin_pool(PoolId id) { pools_.begin(id); }
  // Both free what the pools that were released have kept, as soon as none is open: that waits for the device, which
  // would end a capture. @errors of the driver: they try again at the next call
  Status end_pool(PoolId id);
  Status release_pool(PoolId id);

  struct Stats {
    device_memory::AllocatorStats allocator;
    std::uint64_t stitched_range_bytes = 0;
    std::uint64_t device_bytes = 0;  // that the device has
    std::uint64_t limit_bytes = 0;   // 0: none
    std::uint64_t refused = 0;       // requests that were answered with out of memory
  };
  Stats stats() const;
  // The first invariant of the allocator that does not hold; for tests.
  Status check() const { return allocator_->check(); }

 private:
  DeviceMemory(const gpu::Driver& driver, int device, const Settings& settings)
      : driver_(driver),
        device_(device),
        settings_(settings),
        events_(driver, [this] { return pools_.has_open(); }) {}
  Status start();
  // With the device's context current.
  Status synchronize();
  Status free_released();

  const gpu::Driver& driver_;
  const int device_;
  const Settings settings_;
  gpu::Context context_ = nullptr;
  std::uint64_t device_bytes_ = 0;
  // In the order in which they can be taken apart, from the end.
  std::unique_ptr<device_memory::CudaBackend> backend_;
  gpu::CudaStreamEvents events_;
  std::unique_ptr<stitch::StitchAllocator> allocator_;
  GraphPools pools_;
  std::mutex released_mutex_;
  std::vector<device_memory::Address> released_;  // that pools have kept, and not freed yet

  std::atomic<std::uint64_t> limit_bytes_ = 0;  // for stats
  std::atomic<std::uint64_t> refused_ = 0;
};

}  // namespace cachalot::torch
