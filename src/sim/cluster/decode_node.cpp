#include "sim/cluster/decode_node.h"

#include <algorithm>

#include "base/check.h"

namespace cachalot::sim {

void TokenGaps::record(double seconds, std::uint64_t count) {
  if (count == 0) return;
  ns.record(static_cast<std::uint64_t>(seconds * 1e9), count);
  sum_s += seconds * static_cast<double>(count);
  longest_s = std::max(longest_s, seconds);
}

bool DecodeNode::reserve(std::uint64_t tokens) {
  if (reserved_ == most_sequences_ || tokens > capacity_tokens_ - reserved_tokens_) return false;
  ++reserved_;
  reserved_tokens_ += tokens;
  most_reserved_tokens_ = std::max(most_reserved_tokens_, reserved_tokens_);
  return true;
}

void DecodeNode::enter(const Sequence& sequence, double now_s) {
  CACHALOT_CHECK(sequence.tokens_left != 0 && running_ + waiting_.size() < reserved_);
  waiting_.push_back(sequence);
  if (running_ == 0) begin_step(now_s);
}

void DecodeNode::step(TokenGaps& gaps, std::vector<std::uint32_t>& ended) {
  const double now_s = step_end_s_;
  ++steps_;
  busy_s_ += step_s_;
  tokens_ += running_;
  context_tokens_ += running_;
  gaps.record(step_s_, running_ - joined_.size());
  for (const double last_token_s : joined_) gaps.record(now_s - last_token_s, 1);
  joined_.clear();
  while (!last_.empty() && last_.top().step == steps_) {
    const Last& last = last_.top();
    ended.push_back(last.job);
    --running_;
    --reserved_;
    reserved_tokens_ -= last.reserved_tokens;
    context_tokens_ -= last.reserved_tokens;  // at its end it has all that it reserved
    last_.pop();
  }
  begin_step(now_s);
}

void DecodeNode::begin_step(double now_s) {
  for (const Sequence& sequence : waiting_) {
    last_.push({steps_ + sequence.tokens_left, sequence.job, sequence.reserved_tokens()});
    joined_.push_back(sequence.last_token_s);
    ++running_;
    context_tokens_ += sequence.context_tokens;
  }
  waiting_.clear();
  if (running_ == 0) {
    step_end_s_ = kNever;
    step_s_ = 0;
    return;
  }
  step_s_ = timing_->step_seconds({}, {.sequences = running_, .context_tokens = context_tokens_});
  step_end_s_ = now_s + step_s_;
}

}  // namespace cachalot::sim
