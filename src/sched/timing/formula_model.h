// Timing from a published cost formula: floating-point operations for prefill, bytes read for decode.
//
//   flops(n)            = layers * (a * n^2 * d + b * n * d^2)            d: width of the model
//   prefill(input, hit) = c * (flops(input) - flops(hit)) / peak flops
//   step                = prefill of its parts + (weights + KV of the contexts) / bandwidth, if it decodes
//
// The formula is Mooncake's (FAST'25, arXiv 2407.00079 §6). c is what real engines took over what the formula says.
// The paper gives no formula for decode; the term here is an estimate (FormulaParameters::decode_is_estimate).
#pragma once

#include <cachalot/result.h>

#include <span>
#include <string>
#include <string_view>

#include "sched/timing/timing_model.h"

namespace cachalot::sched {

struct FormulaParameters {
  double layers = 0;
  double width = 0;
  double a = 0, b = 0;
  double peak_flops = 0;  // of the whole instance
  double correction = 1;  // c
  double weight_bytes = 0;
  double kv_bytes_per_token = 0;
  double memory_bytes_per_second = 0;  // that decode reaches
  double step_overhead_s = 0;          // each step, once
};

class FormulaModel final : public TimingModel {
 public:
  // @errors kInvalidArgument: a number is negative or not finite, or one that divides is 0
  static Result<FormulaModel> make(const FormulaParameters& parameters);

  double step_seconds(std::span<const PrefillPart> prefill,
                      const DecodePart& decode) const override;
  double prefill_seconds(std::uint64_t input_tokens, std::uint64_t hit_tokens) const override;

  double flops(double tokens) const;
  const FormulaParameters& parameters() const { return p_; }

 private:
  explicit FormulaModel(const FormulaParameters& parameters) : p_(parameters) {}
  // Without the overhead of a step.
  double prefill_compute_seconds(std::uint64_t input_tokens, std::uint64_t hit_tokens) const;

  FormulaParameters p_;
};

}  // namespace cachalot::sched
