#include "device_memory.h"

#include <algorithm>

namespace cachalot::torch {

using gpu::DeviceScope;

Result<std::unique_ptr<DeviceMemory>> DeviceMemory::open(const gpu::Driver& driver, int device,
                                                         const Settings& settings) {
  std::unique_ptr<DeviceMemory> memory(new DeviceMemory(driver, device, settings));
  CACHALOT_TRY(memory->start());
  return memory;
}

Status DeviceMemory::start() {
  device_memory::CudaOptions options{.device = device_, .rdma = settings_.rdma};
  const std::vector<int>& peers = settings_.peers;
  if (std::find(peers.begin(), peers.end(), device_) != peers.end()) {
    std::copy_if(peers.begin(), peers.end(), std::back_inserter(options.peers),
                 [&](int peer) { return peer != device_; });
  }
  CACHALOT_TRY_ASSIGN(backend_, device_memory::CudaBackend::open(driver_, options));
  std::size_t bytes = 0;
  int result = driver_.device_total_bytes(&bytes, device_);
  if (result != gpu::kSuccess) return gpu::driver_error(driver_, result, "cuDeviceTotalMem");
  device_bytes_ = bytes;
  // The backend holds the context; this is another hold of it, and its name.
  result = driver_.primary_context_retain(&context_, device_);
  if (result != gpu::kSuccess) {
    context_ = nullptr;
    return gpu::driver_error(driver_, result, "cuDevicePrimaryCtxRetain");
  }
  limit_bytes_ = settings_.limit_bytes;
  backend_->set_limit_bytes(settings_.limit_bytes);
  CACHALOT_TRY_ASSIGN(allocator_,
                      stitch::StitchAllocator::create(*backend_, events_, settings_.stitch));
  return {};
}

DeviceMemory::~DeviceMemory() {
  if (context_ == nullptr) return;
  {
    const DeviceScope scope(driver_, context_);
    allocator_.reset();
    backend_.reset();
  }
  driver_.primary_context_release(device_);
}

Result<device_memory::Address> DeviceMemory::allocate(std::uint64_t bytes, gpu::StreamId stream) {
  const DeviceScope scope(driver_, context_);
  CACHALOT_TRY(scope.status());
  Result<device_memory::Address> address = allocator_->allocate(bytes, stream);
  if (!address && address.error().code == Code::kNoSpace) {
    // The allocator has used all that is free already, but for chunks of which several streams have
    // freed a part each: once all work is done and they are given back, they serve any request.
    if (allocator_->release_cached()) address = allocator_->allocate(bytes, stream);
    refused_ += !address;
  }
  if (address) pools_.note(*address);
  return address;
}

Status DeviceMemory::free(device_memory::Address address, gpu::StreamId stream) {
  CACHALOT_TRY_ASSIGN(const bool is_kept, pools_.keep(address));
  if (is_kept) return {};
  const DeviceScope scope(driver_, context_);
  if (scope.has_ended()) return {};
  CACHALOT_TRY(scope.status());
  // No effect where it is the stream that it was allocated on. An address that is not allocated: free()
  // has the words.
  static_cast<void>(allocator_->use_on(address, stream));
  return allocator_->free(address);
}

Status DeviceMemory::free_and_give_back(device_memory::Address address) {
  const DeviceScope scope(driver_, context_);
  if (scope.has_ended()) return {};
  CACHALOT_TRY(scope.status());
  CACHALOT_TRY(synchronize());
  CACHALOT_TRY(allocator_->free(address));
  return allocator_->release_cached();
}

Status DeviceMemory::use_on(device_memory::Address address, gpu::StreamId stream) {
  return allocator_->use_on(address, stream);
}

Status DeviceMemory::release_cached() {
  const DeviceScope scope(driver_, context_);
  if (scope.has_ended()) return {};
  CACHALOT_TRY(scope.status());
  return allocator_->release_cached();
}

Status DeviceMemory::synchronize() {
  const int result = driver_.context_synchronize();
  if (result == gpu::kSuccess) return {};
  return gpu::driver_error(driver_, result, "cuCtxSynchronize");
}

Status DeviceMemory::limit_to(double fraction) {
  if (!(fraction >= 0 && fraction <= 1)) {
    return Error::make(Code::kInvalidArgument, "memory fraction: %g, expected 0 to 1", fraction);
  }
  const auto share = static_cast<std::uint64_t>(static_cast<double>(device_bytes_) * fraction);
  std::uint64_t limit = std::max<std::uint64_t>(share, 1);  // 0 would be no limit
  if (settings_.limit_bytes != 0) limit = std::min(limit, settings_.limit_bytes);
  limit_bytes_ = limit;
  backend_->set_limit_bytes(limit);
  return {};
}

Status DeviceMemory::end_pool(PoolId id) {
  pools_.end(id);
  return free_released();
}

Status DeviceMemory::release_pool(PoolId id) {
  const std::vector<device_memory::Address> kept = pools_.release(id);
  {
    const std::lock_guard lock(released_mutex_);
    released_.insert(released_.end(), kept.begin(), kept.end());
  }
  return free_released();
}

// Replays run on any stream.
Status DeviceMemory::free_released() {
  const std::lock_guard lock(released_mutex_);
  if (released_.empty() || pools_.has_open()) return {};
  const DeviceScope scope(driver_, context_);
  if (scope.has_ended()) return {};
  CACHALOT_TRY(scope.status());
  CACHALOT_TRY(synchronize());
  Status result;
  for (const device_memory::Address address : released_) {
    const Status freed = allocator_->free(address);
    if (!freed && result) result = freed;
  }
  released_.clear();
  return result;
}

DeviceMemory::Stats DeviceMemory::stats() const {
  return {.allocator = allocator_->stats(),
          .stitched_range_bytes = allocator_->stitched_range_bytes(),
          .device_bytes = device_bytes_,
          .limit_bytes = limit_bytes_,
          .refused = refused_};
}

}  // namespace cachalot::torch
