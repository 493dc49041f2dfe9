// A timing model whose answers can be computed in the head, for tests of policies.
#pragma once

#include "sched/timing/timing_model.h"

namespace cachalot::sched {

// Prefill: 1 ms a token that is not there yet. A decode step: 1 s for each sequence and 1 ms for each token of context.
class TestTiming final : public TimingModel {
 public:
  double step_seconds(std::span<const PrefillPart>, const DecodePart& decode) const override {
    return static_cast<double>(decode.sequences) +
           static_cast<double>(decode.context_tokens) / 1000;
  }
  double prefill_seconds(std::uint64_t input_tokens, std::uint64_t hit_tokens) const override {
    return hit_tokens >= input_tokens ? 0 : static_cast<double>(input_tokens - hit_tokens) / 1000;
  }
};

}  // namespace cachalot::sched
