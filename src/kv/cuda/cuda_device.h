// A GPU as copies need it: its primary context, the kernels, and pool memory that it reaches.
//
// Pool memory is registered once, whole devices of a pool at a time, when the pool was mapped: it is
// page-locked then, and has addresses of the GPU's. Registering takes 0.1 s a GB of small pages (vLLM issue
// 51080, an H200), so it has no place in a copy. What one device has registered, others share.
//
// @threads  any; registering and unregistering not beside copies
#pragma once

#include <cachalot/result.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "gpu/driver.h"
#include "gpu/pool_registration.h"
#include "gpu/primary_context.h"
#include "kv/cuda/way.h"
#include "kv/fused/copy_bulk.h"
#include "kv/fused/pool_map.h"

namespace cachalot::kv {

// Of a thread block that copies in bulk: its stages.
inline constexpr std::uint32_t kBulkSharedBytes = kStages * kStageBytes;

// Of a wait that failed: kIo, whatever the driver said, for nothing is known of what was waited for.
inline Error error_of_wait(Error error) {
  error.code = Code::kIo;
  return error;
}

// Of a driver refusal with no copy in flight: another code than that.
inline Error error_of_refusal(Error error) {
  if (error.code == Code::kIo) error.code = Code::kInternal;
  return error;
}
inline Status status_of_refusal(Status status) {
  return status ? Status() : Status(error_of_refusal(status.error()));
}

class CudaDevice {
 public:
  // @param ordinal  CUDA's number of the device
  // @errors kUnsupported: no driver, no device, a library built without kernels, or kernels for other
  //         GPUs; kInvalidArgument: there is no such device
  static Result<std::unique_ptr<CudaDevice>> open(int ordinal = 0);
  // The same with this driver and these kernels.
  static Result<std::unique_ptr<CudaDevice>> open(const gpu::Driver& driver,
                                                  std::span<const unsigned char> image,
                                                  int ordinal);
  // The owner has waited for its copies.
  ~CudaDevice();
  CudaDevice(const CudaDevice&) = delete;
  CudaDevice& operator=(const CudaDevice&) = delete;

  // Memory of the pool, mapped until it is unregistered. @errors kInvalidArgument: it overlaps what is
  // registered, by this device or another; kNoSpace, kPermission: it cannot be page-locked; kUnsupported: not such memory
  // @param most_bytes  of one registration; fewer for tests
  Status register_pool(std::byte* at, std::uint64_t bytes,
                       std::uint64_t most_bytes = gpu::PoolRegistration::kMostBytes);
  // All that the other device reaches. It stays registered until both have gone, or unregister it.
  // @errors kInvalidArgument: it overlaps what this device reaches
  Status share_pool(const CudaDevice& other);
  // The same of what that one registered last.
  Status share_last(const CudaDevice& other) { return reach(other.registered_.back()); }
  // @errors kNotFound
  Status unregister_pool(std::byte* at);

  const PoolMap& pool() const { return pool_; }
  const gpu::Driver& driver() const { return driver_; }
  int ordinal() const { return ordinal_; }
  std::uint32_t multiprocessors() const { return multiprocessors_; }
  bool has_bulk_copies() const { return compute_major_ >= 9; }
  bool has_batched_copies() const { return driver_.copy_batch != nullptr; }
  std::string name() const;
  // For copies beside an engine's kernels: of the greatest priority, for what fills all multiprocessors would
  // let them begin when it ends, and they take few. The calling thread has entered the device; it destroys it.
  // @errors the driver's
  Result<gpu::Stream> make_stream() const;

  struct Kernels {
    gpu::Function gather = nullptr, scatter = nullptr;
    // Null before sm_90. A launch may have kBulkSharedBytes of shared memory.
    gpu::Function gather_bulk = nullptr, scatter_bulk = nullptr;
  };
  const Kernels& kernels() const { return kernels_; }

  // The calling thread, in this device's context.
  struct Entered : gpu::ContextScope {
    explicit Entered(const CudaDevice& device) : gpu::ContextScope(*device.context_) {}
  };

  // Counts a copy that is on a stream. @threads any
  void count(Way way, std::uint64_t bytes);
  WayBytes way_bytes() const;

  // {} or the driver's error, named after the call.
  Status check(int result, const char* call) const;

 private:
  CudaDevice(const gpu::Driver& driver, int ordinal) : driver_(driver), ordinal_(ordinal) {}
  Status load(std::span<const unsigned char> image);
  Status reach(std::shared_ptr<const gpu::PoolRegistration> registration);

  const gpu::Driver driver_;
  const int ordinal_;
  std::shared_ptr<const gpu::PrimaryContext> context_;
  gpu::Module module_ = nullptr;
  Kernels kernels_;
  std::uint32_t multiprocessors_ = 0;
  int compute_major_ = 0;
  PoolMap pool_;
  // Relaxed: for people.
  std::atomic<std::uint64_t> threads_bytes_ = 0, bulk_bytes_ = 0, batch_bytes_ = 0,
                             copy_engine_bytes_ = 0;
  std::vector<std::shared_ptr<const gpu::PoolRegistration>> registered_;
};

}  // namespace cachalot::kv
