#include "replay/pool/workload.h"

#include <algorithm>

#include "block_hash/block_hasher.h"
#include "trace/request/request_trace.h"

namespace cachalot::replay {
namespace {

constexpr double kNsPerMs = 1e6;
constexpr double kLatestNs = 0x1p62;
constexpr double kMostWaitDays = 366;

// An engine sleeps until a request is due.
Status check_due(const ReplayOptions& options, double after_ms, std::size_t number) {
  const double days = after_ms / options.speed / (24 * 3600 * 1e3);
  if (options.speed == 0 || days <= kMostWaitDays) return {};
  return Error::make(
      Code::kBadInput,
      "%.120s: request %zu is due %g days after the first at --speed %g, expected at "
      "most %g",
      options.trace.c_str(), number, days, options.speed, kMostWaitDays);
}

std::uint64_t since(double first_ms, double ms) {
  const double ns = (ms - first_ms) * kNsPerMs;
  return ns > 0 ? static_cast<std::uint64_t>(std::min(ns, kLatestNs)) : 0;
}

}  // namespace

Result<Workload> Workload::load(const ReplayOptions& options) {
  CACHALOT_TRY_ASSIGN(
      trace::RequestTrace reader,
      trace::RequestTrace::open(options.trace, {.block_tokens = options.block_tokens,
                                                .skip_bad_lines = options.skip_bad_lines,
                                                .format = options.trace_format,
                                                .synthetic_prefix = options.synthetic_prefix,
                                                .time_unit_ms = options.time_unit_ms,
                                                .warn = options.warn}));
  CACHALOT_TRY(reader.require_ids());
  block_hash::BlockHasher hasher =
      block_hash::BlockHasher::xxh3(block_hash::make_namespace(fingerprint(options)));
  Workload load;
  trace::Request request;
  double first_ms = 0;
  while (options.limit_requests == 0 || load.requests() < options.limit_requests) {
    CACHALOT_TRY_ASSIGN(const bool more, reader.next(request));
    if (!more) break;
    if (__builtin_add_overflow(load.total_tokens_, request.input_tokens, &load.total_tokens_)) {
      return Error::make(Code::kBadInput,
                         "%.120s: the input lengths of its requests exceed 2^64 tokens",
                         options.trace.c_str());
    }
    if (load.requests() == 0) first_ms = request.timestamp_ms;
    CACHALOT_TRY(check_due(options, request.timestamp_ms - first_ms, load.requests() + 1));
    block_hash::Digest digest = hasher.root();
    for (const std::uint64_t& id : request.hash_ids) {
      digest = hasher.next(digest, std::span(&id, 1));
      load.hashes_.push_back(digest.block_hash());
    }
    load.first_block_.push_back(load.hashes_.size());
    load.input_tokens_.push_back(request.input_tokens);
    load.arrival_ns_.push_back(since(first_ms, request.timestamp_ms));
  }
  load.skipped_lines_ = reader.skipped_lines();
  return load;
}

}  // namespace cachalot::replay
