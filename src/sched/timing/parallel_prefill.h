// How long one long prompt takes on several instances, by the three ways to split it.
//
// - Chunked pipeline: each instance has a share of the layers; chunks of the prompt follow each other through them.
// - Sequence parallelism: each instance has a share of the tokens; every layer's KV goes around all of them while
//   attention computes.
// - Tensor parallelism: each instance has a share of every matrix; two all-reduces a layer.
//
// What one instance computes comes from its timing model; the split is ideal but for what it must transfer and wait.
#pragma once

#include <cstdint>

#include "sched/timing/served_model.h"
#include "sched/timing/timing_model.h"

namespace cachalot::sched {

// Between two instances.
struct GroupLink {
  double bytes_per_second = 1;
  double latency_s = 0;

  double seconds(double bytes) const { return latency_s + bytes / bytes_per_second; }
};

// Each for `tokens` of input on `instances`, at least 1 of each. @pre chunk_tokens >= 1
// @cost linear in tokens / chunk_tokens * instances
double chunked_pipeline_seconds(const TimingModel& instance, const ServedModel& model,
                                std::uint64_t tokens, std::uint64_t instances,
                                std::uint64_t chunk_tokens, const GroupLink& link);
double sequence_parallel_seconds(const TimingModel& instance, const ServedModel& model,
                                 std::uint64_t tokens, std::uint64_t instances,
                                 const GroupLink& link);
double tensor_parallel_seconds(const TimingModel& instance, const ServedModel& model,
                               std::uint64_t tokens, std::uint64_t instances,
                               const GroupLink& link);

// What all instances together send each other for it, in bytes.
double chunked_pipeline_bytes(const ServedModel& model, std::uint64_t tokens,
                              std::uint64_t instances);
double sequence_parallel_bytes(const ServedModel& model, std::uint64_t tokens,
                               std::uint64_t instances);
double tensor_parallel_bytes(const ServedModel& model, std::uint64_t tokens,
                             std::uint64_t instances);

// The chunk with which the pipeline is fastest, of powers of two from 1,024 to 65,536 tokens; equal times: the larger.
// Arguments as chunked_pipeline_seconds().
std::uint64_t best_chunk_tokens(const TimingModel& instance, const ServedModel& model,
                                std::uint64_t tokens, std::uint64_t instances,
                                const GroupLink& link);

// T_offload / T_prefill of LayerKV: how long the KV of a prompt takes to the host's memory, over how long it takes to
// compute. At most 1: the copy of each layer hides behind the computation of the next ones.
double offload_ratio(const TimingModel& instance, double kv_bytes_per_token, std::uint64_t tokens,
                     double host_bytes_per_second);

}  // namespace cachalot::sched
