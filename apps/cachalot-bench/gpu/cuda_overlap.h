// What copies between the pool and a GPU cost the kernels that run beside them, and one large copy as
// the limit of both; and what a copy waits for beside such a kernel.
#pragma once

#include <cachalot/result.h>

#include <cstdint>
#include <vector>

#include "cuda_device.h"
#include "measure.h"

namespace cachalot::apps::bench {

// One copy of the driver's each time, between the GPU's memory and the pool's, or memory that the driver
// allocated and page-locked.
struct FlatTimes {
  std::vector<double> pool_us, page_locked_us;
};
// @errors the driver's, kNoSpace
Result<FlatTimes> measure_flat(const Settings& settings, kv::CudaDevice& device,
                               kv::Direction direction, std::uint64_t bytes);

// A kernel that fills every multiprocessor.
enum class Compute {
  kMath,    // its limit is arithmetic
  kMemory,  // the GPU's memory
  // Arithmetic, by thread blocks that each have a multiprocessor's shared memory whole, as those of large
  // products and of attention do: none can be where a copy's thread block is.
  kWhole,
};
inline const char* compute_name(Compute compute) {
  return compute == Compute::kMath ? "math" : compute == Compute::kMemory ? "memory" : "whole";
}

struct OverlapTimes {
  std::vector<double> alone_ms, beside_ms;  // of the kernel
  double copy_gb_s = 0, copy_alone_gb_s = 0;
};
// The kernel alone and with copies beside it, in turns: 20 ms each, of 20 KB fragments, two calls
// always in flight on a stream of their own.
// @errors the driver's; kUnsupported: built without kernels
Result<OverlapTimes> measure_overlap(const Settings& settings, kv::CudaDevice& device,
                                     kv::Direction direction, Compute compute, kv::Way way);

// One block, from the call to the end of its stream, alone and while a kernel fills every multiprocessor.
struct LatencyTimes {
  std::vector<double> alone_us, beside_us;
};
// @errors the driver's; kUnsupported: built without kernels
Result<LatencyTimes> measure_latency(const Settings& settings, kv::CudaDevice& device,
                                     kv::Direction direction, Compute compute, kv::Way way);

}  // namespace cachalot::apps::bench
