// The memory in which a launch's tables go to the device, and the event that tells when it is done: used
// again by one launch after the other.
//
// 1. A slot is given out again only after its event, for until then the device may read its tables.
// 2. A slot of which nothing is known any more, because the driver failed, is never given out again nor
//    freed.
// 3. None is freed while copies may begin: freeing the device's memory waits for all that runs on it. Sizes
//    are powers of two, so the smaller ones that stay have at most as much as the largest.
//
// @threads  any
#pragma once

#include <cachalot/result.h>

#include <memory>
#include <mutex>
#include <vector>

#include "kv/cuda/cuda_device.h"

namespace cachalot::kv {

struct LaunchSlot {
  std::byte* host = nullptr;  // page-locked; null where no tables go this way
  gpu::DevicePointer device = 0;
  std::uint64_t bytes = 0;
  gpu::Event event = nullptr;
};

class LaunchSlots {
 public:
  // @param device  outlives it
  explicit LaunchSlots(const CudaDevice& device) : device_(device) {}
  // All slots were given back or abandoned.
  ~LaunchSlots();
  LaunchSlots(const LaunchSlots&) = delete;
  LaunchSlots& operator=(const LaunchSlots&) = delete;

  // The calling thread has entered the device.
  // @param bytes  of tables; 0: they go with the launch
  // @errors kNoSpace, kIo  @cost  a lock; a new slot: an event of the driver's, and for tables two
  //         allocations, which may wait for the device
  Result<std::unique_ptr<LaunchSlot>> take(std::uint64_t bytes);
  void give_back(std::unique_ptr<LaunchSlot> slot);
  void abandon(std::unique_ptr<LaunchSlot> slot);

 private:
  Status allocate(LaunchSlot& slot, std::uint64_t bytes) const;
  void free(LaunchSlot& slot) const;

  const CudaDevice& device_;
  std::mutex mutex_;
  std::vector<std::unique_ptr<LaunchSlot>> free_;
};

}  // namespace cachalot::kv
