#include "sched/timing/parallel_prefill.h"

#include <algorithm>
#include <limits>
#include <vector>

namespace cachalot::sched {
namespace {

constexpr double kActivationBytes = 2;  // bf16

}  // namespace

double chunked_pipeline_seconds(const TimingModel& instance, const ServedModel& model,
                                std::uint64_t tokens, std::uint64_t instances,
                                std::uint64_t chunk_tokens, const GroupLink& link) {
  // When stage s has computed the last chunk that it got, and when its link has sent it.
  std::vector<double> done(instances, 0), sent(instances, 0);
  for (std::uint64_t first = 0; first < tokens; first += chunk_tokens) {
    const std::uint64_t chunk = std::min(chunk_tokens, tokens - first);
    const PrefillPart part[] = {{.new_tokens = chunk, .context_tokens = first}};
    const double stage_s = instance.step_seconds(part, {}) / static_cast<double>(instances);
    const double send_s =
        static_cast<double>(chunk) * model.width * kActivationBytes / link.bytes_per_second;
    double arrival = 0;
    for (std::uint64_t stage = 0; stage < instances; ++stage) {
      done[stage] = std::max(done[stage], arrival) + stage_s;
      sent[stage] = std::max(sent[stage], done[stage]) + send_s;
      arrival = sent[stage] + link.latency_s;
    }
  }
  return done.back();
}

double sequence_parallel_seconds(const TimingModel& instance, const ServedModel& model,
                                 std::uint64_t tokens, std::uint64_t instances,
                                 const GroupLink& link) {
  const auto n = static_cast<double>(instances);
  const double compute_s = instance.prefill_seconds(tokens, 0) / n;
  if (instances == 1) return compute_s;
  // A layer's KV of each share visits the other instances, one hop at a time; a layer computes meanwhile.
  const double layer_share_bytes = static_cast<double>(tokens) / n * model.kv_numbers_per_token() /
                                   model.layers * kActivationBytes;
  const double ring_s = (n - 1) * link.seconds(layer_share_bytes);
  return model.layers * std::max(compute_s / model.layers, ring_s);
}

double tensor_parallel_seconds(const TimingModel& instance, const ServedModel& model,
                               std::uint64_t tokens, std::uint64_t instances,
                               const GroupLink& link) {
  const auto n = static_cast<double>(instances);
  const double compute_s = instance.prefill_seconds(tokens, 0) / n;
  if (instances == 1) return compute_s;
  const double bytes = static_cast<double>(tokens) * model.width * kActivationBytes;
  return compute_s + 2 * model.layers * link.seconds(2 * (n - 1) / n * bytes);
}

// Activations of all tokens, between neighbours.
double chunked_pipeline_bytes(const ServedModel& model, std::uint64_t tokens,
                              std::uint64_t instances) {
  return static_cast<double>(instances - 1) * static_cast<double>(tokens) * model.width *
         kActivationBytes;
}

// Each share of the KV visits every other instance.
double sequence_parallel_bytes(const ServedModel& model, std::uint64_t tokens,
                               std::uint64_t instances) {
  return static_cast<double>(instances - 1) * static_cast<double>(tokens) *
         model.kv_numbers_per_token() * kActivationBytes;
}

// An all-reduce in a ring: each instance sends 2 (n - 1) / n of the activations, two times a layer.
double tensor_parallel_bytes(const ServedModel& model, std::uint64_t tokens,
                             std::uint64_t instances) {
  return 2 * model.layers * 2 * chunked_pipeline_bytes(model, tokens, instances);
}

std::uint64_t best_chunk_tokens(const TimingModel& instance, const ServedModel& model,
                                std::uint64_t tokens, std::uint64_t instances,
                                const GroupLink& link) {
  constexpr std::uint64_t kSmallest = 1024, kLargest = 65536;
  std::uint64_t best = kLargest;
  double best_s = std::numeric_limits<double>::infinity();
  for (std::uint64_t chunk = kLargest; chunk >= kSmallest; chunk /= 2) {
    const double seconds =
        chunked_pipeline_seconds(instance, model, tokens, instances, chunk, link);
    if (seconds >= best_s) continue;
    best_s = seconds;
    best = chunk;
  }
  return best;
}

double offload_ratio(const TimingModel& instance, double kv_bytes_per_token, std::uint64_t tokens,
                     double host_bytes_per_second) {
  const double prefill_s = instance.prefill_seconds(tokens, 0);
  return static_cast<double>(tokens) * kv_bytes_per_token / host_bytes_per_second / prefill_s;
}

}  // namespace cachalot::sched
