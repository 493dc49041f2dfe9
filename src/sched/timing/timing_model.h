// How long a step of an engine takes: the one question that routing, admission and simulation ask of a timing model.
//
// 1. All times are seconds, finite, and not below 0.
// 2. A model has no clock, no random numbers and no state that a call changes: equal questions have equal answers.
// 3. More work takes no less time than less work, as far as what the model was made from has this property.
#pragma once

#include <cstdint>
#include <span>

namespace cachalot::sched {

// One request's share of a step that computes a part of its prompt.
struct PrefillPart {
  std::uint64_t new_tokens = 0;
  std::uint64_t context_tokens = 0;  // tokens whose KV is there already
};

// The sequences of a step that each get one more token.
struct DecodePart {
  std::uint64_t sequences = 0;
  std::uint64_t context_tokens = 0;  // sum over the sequences
  // Of single sequences, for models that know what uneven contexts cost; 0: all are even.
  std::uint64_t longest_context_tokens = 0;
  std::uint64_t shortest_context_tokens = 0;
};

// @threads any
class TimingModel {
 public:
  virtual ~TimingModel() = default;
  // Seconds of one engine step that computes these together (continuous batching).
  virtual double step_seconds(std::span<const PrefillPart> prefill,
                              const DecodePart& decode) const = 0;
  // Seconds to prefill one request alone; `hit_tokens` of its input are there already.
  virtual double prefill_seconds(std::uint64_t input_tokens, std::uint64_t hit_tokens) const = 0;
};

}  // namespace cachalot::sched
