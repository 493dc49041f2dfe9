// What a GPU's data sheet says: memory, bandwidth, peak operations, and the link that tensor parallelism uses.
#pragma once

#include <cachalot/result.h>

#include <string>
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
  // What an engine's step with prompt tokens takes beyond its kernels. Recorded runs of vLLM 0.19 show 5.2 ms on the
  // machine with the RTX PRO 6000 (4 ms at 300 tokens, 5 ms at 2,048), and none on that with the RTX 4090; others: a
  // value between them. It belongs to the host as much as to the GPU.
  double prompt_step_overhead_s;
  // The link's figures are not measured ones of an engine on this GPU.
  bool link_is_estimate;

  double all_reduce_seconds(double bytes, double tensor_parallel) const {
    if (tensor_parallel <= 1) return 0;
    return link_latency_s +
           2 * (tensor_parallel - 1) / tensor_parallel * bytes / link_bytes_per_second;
  }
};

// A link between the GPUs of a node, as GpuSpec has it.
struct LinkSpec {
  const char* name;
  double bytes_per_second;
  double latency_s;
};

// "pcie4", "pcie5", "nvlink3", "nvlink4", "nvlink5". @errors kInvalidArgument: no such link; the message has the names
Result<LinkSpec> find_link(std::string_view name);
// With `between` between two.
std::string link_names(const char* between);

// Case, blanks, '-' and '_' do not matter: "RTXPRO6000", "rtx_pro_6000", "h100_sxm".
// @errors kInvalidArgument: no such GPU; the message has the names
Result<GpuSpec> find_gpu(std::string_view name);
// All of them, for messages.
std::string gpu_names();

}  // namespace cachalot::sched
