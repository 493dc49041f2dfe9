// What a GPU's data sheet says: memory, bandwidth, peak operations, and the link that tensor parallelism uses.
#pragma once

#include <cachalot/result.h>

#include <span>
#include <string_view>

namespace cachalot::sched {

struct GpuSpec {
  const char* name;
  double memory_bytes;
  double memory_bytes_per_second;
  double bf16_flops;  // dense
  double fp8_flops;   // dense; 0: it has none
  // An all-reduce among the GPUs of one node takes
  //   link_latency_s + 2 * (tp - 1) / tp * bytes / link_bytes_per_second
  double link_bytes_per_second;
  double link_latency_s;
  // Between the GPU and the memory of its host, one direction.
  double host_bytes_per_second;
  // The link was not measured on the machine of the profiles or runs in this repository's tests.
  bool link_is_estimate;

  double all_reduce_seconds(double bytes, double tensor_parallel) const {
    if (tensor_parallel <= 1) return 0;
    return link_latency_s +
           2 * (tensor_parallel - 1) / tensor_parallel * bytes / link_bytes_per_second;
  }
};

std::span<const GpuSpec> gpu_specs();

// Case, blanks, '-' and '_' do not matter: "RTXPRO6000", "rtx_pro_6000", "h100_sxm".
// @errors kInvalidArgument: no such GPU; the message has the names
Result<GpuSpec> find_gpu(std::string_view name);

}  // namespace cachalot::sched
