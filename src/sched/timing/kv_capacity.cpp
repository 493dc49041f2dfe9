#include "sched/timing/kv_capacity.h"

#include <algorithm>

namespace cachalot::sched {
namespace {

constexpr double kBytesPerKvNumber = 2;

}  // namespace

Result<std::uint64_t> estimate_kv_blocks(const GpuSpec& gpu, const ServedModel& model,
                                         const KvCapacityOptions& options) {
  const double weights = (model.layer_weights() + 2 * model.vocabulary_weights()) *
                         options.bytes_per_weight / options.tensor_parallel;
  // Ranks beyond the KV heads keep copies.
  const double token_bytes = model.kv_numbers_per_token() * kBytesPerKvNumber /
                             std::min(options.tensor_parallel, model.kv_heads);
  const double left =
      gpu.memory_bytes * options.memory_utilization - weights - options.reserved_bytes;
  const double blocks = left / (token_bytes * options.block_tokens);
  if (blocks >= 1) return static_cast<std::uint64_t>(blocks);
  return Error::make(Code::kInvalidArgument,
                     "%s on %s with tensor parallelism %g: the weights take %.1f GB a GPU, which "
                     "leaves no KV block in %.0f %% of %.1f GB",
                     model.name, gpu.name, options.tensor_parallel, weights / 1e9,
                     options.memory_utilization * 100, gpu.memory_bytes / 1e9);
}

}  // namespace cachalot::sched
