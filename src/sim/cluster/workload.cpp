#include "sim/cluster/workload.h"

#include <algorithm>
#include <cinttypes>
#include <cmath>

#include "cache_sim/hit_tokens.h"

namespace cachalot::sim {
namespace {

constexpr double kMostSpanS = 0x1p32;  // within it, a double tells microseconds apart

}  // namespace

Status Workload::add(std::span<const std::uint64_t> ids, std::uint64_t input_tokens,
                     std::uint64_t output_tokens, double timestamp_ms) {
  constexpr std::uint64_t kMostTokens = std::uint64_t{1} << 40;
  if (!std::isfinite(timestamp_ms)) {
    return Error::make(Code::kBadInput, "timestamp: %g, expected a finite number of ms",
                       timestamp_ms);
  }
  if (input_tokens > kMostTokens || output_tokens > kMostTokens) {
    return Error::make(Code::kBadInput,
                       "request: %" PRIu64 " input and %" PRIu64
                       " output tokens, expected at most 2^40 of each",
                       input_tokens, output_tokens);
  }
  Job job{.arrival_s = timestamp_ms / 1000,
          .input_tokens = input_tokens,
          .output_tokens = output_tokens,
          .first_block = blocks_.size(),
          .blocks = static_cast<std::uint32_t>(ids.size())};
  CACHALOT_TRY(numbers_.append_path(ids, blocks_));
  jobs_.push_back(job);
  return {};
}

Status Workload::finish(double rate_scale) {
  if (jobs_.empty()) return Error::make(Code::kBadInput, "trace: no request, expected one or more");
  std::stable_sort(jobs_.begin(), jobs_.end(),
                   [](const Job& a, const Job& b) { return a.arrival_s < b.arrival_s; });
  const double first_s = jobs_.front().arrival_s, last_s = jobs_.back().arrival_s;
  if (last_s - first_s > kMostSpanS) {
    return Error::make(
        Code::kBadInput,
        "trace: the last of %zu requests is at %g ms and the first at %g ms, expected "
        "at most %g ms (136 years) between them",
        jobs_.size(), last_s * 1000, first_s * 1000, kMostSpanS * 1000);
  }
  for (Job& job : jobs_) job.arrival_s = (job.arrival_s - first_s) / rate_scale;
  return {};
}

void Workload::rescale(double rate_scale) {
  for (Job& job : jobs_) job.arrival_s /= rate_scale;
}

void Workload::repeat(std::uint64_t passes) {
  const std::vector<Job> once = jobs_;
  const double pass_s = once.back().arrival_s;
  for (std::uint64_t pass = 1; pass < passes; ++pass) {
    for (Job job : once) {
      job.arrival_s += static_cast<double>(pass) * pass_s;
      jobs_.push_back(job);
    }
  }
}

std::uint64_t Workload::tokens_of(const Job& job, std::size_t blocks) const {
  return cache_sim::hit_tokens(blocks, block_tokens_, job.input_tokens);
}

}  // namespace cachalot::sim
