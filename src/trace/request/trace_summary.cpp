#include "trace/request/trace_summary.h"

#include <algorithm>

namespace cachalot::trace {
namespace {

double rate(std::uint64_t part, std::uint64_t whole) {
  return whole == 0 ? 0 : static_cast<double>(part) / static_cast<double>(whole);
}

Error too_long(const char* which) {
  return Error::make(Code::kBadInput, "the %s lengths of its requests exceed 2^64 tokens", which);
}

}  // namespace

Status TraceSummary::add(const Request& request) {
  std::uint64_t input = 0, output = 0;
  if (__builtin_add_overflow(total_input_, request.input_tokens, &input)) return too_long("input");
  if (__builtin_add_overflow(total_output_, request.output_tokens, &output))
    return too_long("output");
  total_input_ = input;
  total_output_ = output;
  first_ms_ = inputs_.empty() ? request.timestamp_ms : std::min(first_ms_, request.timestamp_ms);
  last_ms_ = inputs_.empty() ? request.timestamp_ms : std::max(last_ms_, request.timestamp_ms);
  inputs_.push_back(request.input_tokens);
  outputs_.push_back(request.output_tokens);

  const std::uint64_t hit = store(request.hash_ids);
  const std::uint64_t full = block_tokens_ == 0 ? 0 : request.input_tokens / block_tokens_;
  std::uint64_t hit_tokens = 0;
  if (__builtin_mul_overflow(hit, block_tokens_, &hit_tokens)) hit_tokens = request.input_tokens;
  hit_tokens = std::min(hit_tokens, request.input_tokens);
  blocks_total_ += request.hash_ids.size();
  full_blocks_ += full;
  hit_blocks_ += hit;
  hit_full_blocks_ += std::min(hit, full);
  hit_tokens_ += hit_tokens;
  if (request.input_tokens == 0) return {};
  ++nonempty_requests_;
  sum_of_token_rates_ += rate(hit_tokens, request.input_tokens);
  return {};
}

// @return how many leading blocks were there
std::uint64_t TraceSummary::store(const std::vector<std::uint64_t>& ids) {
  std::uint64_t parent = 0, hit = 0;
  for (const std::uint64_t id : ids) {
    const PairTable::Found found = blocks_.find_or_add({parent, id});
    hit += found.is_new ? 0 : 1;  // below a new block all are new
    parent = found.number + 1;
  }
  return hit;
}

IdealRates TraceSummary::ideal() const {
  return {.hit_blocks = hit_blocks_,
          .block = rate(hit_blocks_, blocks_total_),
          .token = rate(hit_tokens_, total_input_),
          .full_block = rate(hit_full_blocks_, full_blocks_),
          .mean_token = nonempty_requests_ == 0
                            ? 0
                            : sum_of_token_rates_ / static_cast<double>(nonempty_requests_)};
}

std::uint64_t TraceSummary::inconsistent_ids() const {
  std::vector<std::uint64_t> ids;
  ids.reserve(blocks_.pairs().size());
  for (const PairTable::Pair& pair : blocks_.pairs()) ids.push_back(pair.second);
  std::sort(ids.begin(), ids.end());
  std::uint64_t inconsistent = 0;
  for (std::size_t begin = 0, end = 0; begin < ids.size(); begin = end) {
    while (end < ids.size() && ids[end] == ids[begin]) ++end;
    inconsistent += end - begin > 1 ? 1 : 0;
  }
  return inconsistent;
}

Lengths TraceSummary::lengths_of(std::vector<std::uint64_t> values, std::uint64_t total) {
  if (values.empty()) return {};
  std::sort(values.begin(), values.end());
  const auto at = [&](std::uint64_t percent) {
    return values[(values.size() * percent + 99) / 100 - 1];
  };
  return {.total = total,
          .mean = static_cast<double>(total) / static_cast<double>(values.size()),
          .p50 = at(50),
          .p90 = at(90),
          .p99 = at(99),
          .max = values.back()};
}

}  // namespace cachalot::trace
