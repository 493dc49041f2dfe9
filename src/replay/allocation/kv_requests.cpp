#include "replay/allocation/kv_requests.h"

#include <algorithm>
#include <cinttypes>

namespace cachalot::replay {

bool KvRequests::has_any_within(std::uint64_t tokens) const {
  return std::any_of(requests_.begin(), requests_.end(), [&](const Lengths& each) {
    return each.total_tokens != 0 && each.total_tokens <= tokens;
  });
}

Result<KvRequests> KvRequests::read(trace::RequestTrace& trace, bool with_ids,
                                    std::uint64_t limit) {
  KvRequests all;
  trace::Request request;
  double first_ms = 0, last_ms = 0;
  while (limit == 0 || all.size() < limit) {
    CACHALOT_TRY_ASSIGN(const bool more, trace.next(request));
    if (!more) break;
    if (all.requests_.empty()) first_ms = request.timestamp_ms;
    last_ms = std::max(last_ms, request.timestamp_ms - first_ms);
    std::uint64_t total = 0;
    if (__builtin_add_overflow(request.input_tokens, request.output_tokens, &total)) {
      return Error::make(Code::kBadInput,
                         "request %zu: %" PRIu64 " and %" PRIu64
                         " tokens, expected less than 2^64 together",
                         all.size() + 1, request.input_tokens, request.output_tokens);
    }
    if (with_ids && trace.block_tokens() != 0) {
      const std::size_t whole = std::min<std::uint64_t>(
          request.hash_ids.size(), request.input_tokens / trace.block_tokens());
      all.ids_.insert(all.ids_.end(), request.hash_ids.begin(),
                      request.hash_ids.begin() + static_cast<std::ptrdiff_t>(whole));
    }
    all.requests_.push_back({.input_tokens = request.input_tokens,
                             .total_tokens = total,
                             .arrival_ms = last_ms,
                             .ids_end = all.ids_.size()});
    all.longest_tokens_ = std::max(all.longest_tokens_, total);
  }
  return all;
}

}  // namespace cachalot::replay
