// A GPU as copies need it: its primary context, the kernels, and pool memory that it reaches.
//
// Pool memory is registered once, whole devices of a pool at a time, when the pool was mapped: it is
// page-locked then, and has addresses of the GPU's. Registering takes a millisecond per some hundred
// megabytes (estimate), so it has no place in a copy.
//
// @threads  any; registering and unregistering not beside copies
#pragma once

#include <cachalot/result.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "kv/fused/pool_map.h"
#include "os/cuda/driver.h"

namespace cachalot::kv {

namespace cuda = os::cuda;

// Of a wait that failed: kIo, whatever the driver said, for nothing is known of what was waited for.
inline Error error_of_wait(Error error) {
  error.code = Code::kIo;
  return error;
}

// Of what the driver refused, with nothing under way: another code than that.
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
  static Result<std::unique_ptr<CudaDevice>> open(const cuda::Driver& driver,
                                                  std::span<const unsigned char> image,
                                                  int ordinal);
  // Whoever copies has waited for its copies.
  ~CudaDevice();
  CudaDevice(const CudaDevice&) = delete;
  CudaDevice& operator=(const CudaDevice&) = delete;

  // Memory of the pool, mapped until it is unregistered. @errors kInvalidArgument: it overlaps what is
  // registered; kNoSpace, kPermission: it cannot be page-locked; kUnsupported: not such memory
  Status register_pool(std::byte* at, std::uint64_t bytes);
  // @errors kNotFound
  Status unregister_pool(std::byte* at);

  const PoolMap& pool() const { return pool_; }
  const cuda::Driver& driver() const { return driver_; }
  std::uint32_t multiprocessors() const { return multiprocessors_; }
  bool has_bulk_copies() const { return compute_major_ >= 9; }
  std::string name() const;

  struct Kernels {
    cuda::Function gather = nullptr, scatter = nullptr;
    cuda::Function gather_bulk = nullptr, scatter_bulk = nullptr;  // null before sm_90
  };
  const Kernels& kernels() const { return kernels_; }

  // While it lives, the calling thread is in this device's context; afterwards in the one it was in. It may
  // then do what a program that captures a stream into a graph forbids its threads otherwise.
  class Entered {
   public:
    explicit Entered(const CudaDevice& device);
    ~Entered();
    Entered(const Entered&) = delete;
    Entered& operator=(const Entered&) = delete;
    // @errors kIo: the driver refused
    const Status& status() const { return status_; }

   private:
    const CudaDevice& device_;
    cuda::Context before_ = nullptr;
    bool changed_ = false;
    int capture_mode_ = cuda::kCaptureRelaxed;
    Status status_;
  };

  // {} or the driver's error, named after the call.
  Status check(int result, const char* call) const;

 private:
  CudaDevice(const cuda::Driver& driver, int ordinal) : driver_(driver), ordinal_(ordinal) {}
  Status load(std::span<const unsigned char> image);

  const cuda::Driver driver_;
  const int ordinal_;
  cuda::Context context_ = nullptr;
  cuda::Module module_ = nullptr;
  Kernels kernels_;
  std::uint32_t multiprocessors_ = 0;
  int compute_major_ = 0;
  PoolMap pool_;
  std::vector<std::byte*> registered_;
};

}  // namespace cachalot::kv
