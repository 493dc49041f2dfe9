// How many KV blocks an engine has on a GPU: what the weights and the computation leave of its memory.
#pragma once

#include <cachalot/result.h>

#include <cstdint>

#include "sched/timing/gpu_spec.h"
#include "sched/timing/served_model.h"

namespace cachalot::sched {

struct KvCapacityOptions {
  double tensor_parallel = 1;
  double memory_utilization = 0.9;  // share of the GPU's memory that the engine may use
  double bytes_per_weight = 2;
  double block_tokens = 16;
  // Activations, recorded graphs and the driver. vLLM measures it at start; the recorded run on an RTX 4090 left 2,588
  // blocks of 2 MiB beside 16.06 GB of weights in 90 % of 24,564 MiB, so it took 1.7 GB.
  double reserved_bytes = 1.7e9;
};

// @errors kInvalidArgument: the model does not fit
Result<std::uint64_t> estimate_kv_blocks(const GpuSpec& gpu, const ServedModel& model,
                                         const KvCapacityOptions& options);

}  // namespace cachalot::sched
