#include "trace/request/trace_merge.h"

#include <algorithm>
#include <utility>

namespace cachalot::trace {
namespace {

constexpr std::uint64_t kGlobalScope = 0;

Status check_block_tokens(std::uint64_t from, std::uint64_t to, std::size_t trace) {
  if (from != 0 && to != 0 && to % from == 0) return {};
  return Error::make(Code::kInvalidArgument,
                     "block tokens: %llu for trace %zu of %llu tokens a block, expected a multiple",
                     static_cast<unsigned long long>(to), trace + 1,
                     static_cast<unsigned long long>(from));
}

}  // namespace

void join_blocks(std::uint64_t blocks_in_one, std::vector<std::uint64_t>& ids) {
  if (blocks_in_one <= 1) return;
  std::size_t larger = 0;
  for (std::size_t at = 0; at < ids.size(); at += blocks_in_one)
    ids[larger++] = ids[std::min<std::size_t>(at + blocks_in_one, ids.size()) - 1];
  ids.resize(larger);
}

Result<TraceMerge> TraceMerge::make(std::vector<RequestTrace> traces, const MergeOptions& options) {
  TraceMerge merge;
  merge.block_tokens_ = options.block_tokens != 0 ? options.block_tokens : traces[0].block_tokens();
  bool any_local = false;
  for (std::size_t i = 0; i < traces.size(); ++i) {
    RequestTrace& trace = traces[i];
    CACHALOT_TRY(trace.require_ids());
    Request first;
    CACHALOT_TRY_ASSIGN(const bool has_more, trace.next(first));
    if (options.block_tokens == 0 && trace.block_tokens() != merge.block_tokens_) {
      return Error::make(Code::kInvalidArgument,
                         "block tokens: %llu in trace %zu, %llu in the first, expected one size or "
                         "--block-tokens",
                         static_cast<unsigned long long>(trace.block_tokens()), i + 1,
                         static_cast<unsigned long long>(merge.block_tokens_));
    }
    CACHALOT_TRY(check_block_tokens(trace.block_tokens(), merge.block_tokens_, i));
    any_local = any_local || trace.ids_are_local();
    const std::uint64_t scope = trace.ids_are_local() ? i + 1 : kGlobalScope;
    const std::uint64_t blocks_in_one = merge.block_tokens_ / trace.block_tokens();
    merge.inputs_.push_back({std::move(trace), blocks_in_one, scope, std::move(first), has_more});
  }
  merge.renumbers_ = options.renumber || (any_local && merge.inputs_.size() > 1);
  return merge;
}

Result<bool> TraceMerge::next(Request& request) {
  Input* earliest = nullptr;
  for (Input& input : inputs_) {
    if (!input.has_more) continue;
    if (earliest == nullptr || input.ahead.timestamp_ms < earliest->ahead.timestamp_ms) {
      earliest = &input;
    }
  }
  if (earliest == nullptr) return false;
  std::swap(request, earliest->ahead);
  convert(*earliest, request.hash_ids);
  CACHALOT_TRY_ASSIGN(earliest->has_more, earliest->trace.next(earliest->ahead));
  return true;
}

void TraceMerge::convert(const Input& input, std::vector<std::uint64_t>& ids) {
  join_blocks(input.blocks_in_one, ids);
  if (!renumbers_) return;
  for (std::uint64_t& id : ids) id = numbers_.find_or_add({input.scope, id}).number;
}

std::uint64_t TraceMerge::skipped_lines() const {
  std::uint64_t lines = 0;
  for (const Input& input : inputs_) lines += input.trace.skipped_lines();
  return lines;
}

}  // namespace cachalot::trace
