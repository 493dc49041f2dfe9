// Timing with a dozen coefficients, fitted to measured TTFT and TPOT of an engine under steady load.
//
// What a GPU must do is known: weights and KV to read, operations to compute, activations to reduce over the ranks.
// Coefficients say how much longer than the data sheet's figures it takes, and what an engine adds. For an instance
// with `tp` GPUs, and per instance w = weights, k = KV bytes of a token, f = operations of a token:
//
//   prefill(n, h) = compute * f * (n - h) / tp F + attention * (its operations) / tp F + reduce * (n - h) * r
//   decode(s, c)  = step + read_weights * w / tp B + read_kv * k * c / tp B
//                   + s * (reduce * r + sequence) + 2 * layers * reduce_latency
//
// F, B: peak operations and memory bandwidth of a GPU. r: 2 * layers all-reduces of a token over the link.
//
// Under steady load of c requests, each of n tokens in and m out, every request meets each other request's prefill
// once while it decodes, and at its arrival some prefills that go first:
//
//   TPOT = decode(c, c * (n + m / 2)) + prefill(n, 0) * (c - 1) / m
//   TTFT = request + decode(...) + prefill(n, 0) * (ahead + ahead_load * c ^ load_power)
//
// Requests that the KV cannot hold wait: then c is what fits, and TTFT adds (asked - c) / c times a request's life.
//
// 1. Every coefficient is above 0, so all times grow with the work, and bounded, so all times are finite.
#pragma once

#include <cachalot/result.h>

#include <array>
#include <span>
#include <string>
#include <vector>

#include "sched/timing/gpu_spec.h"
#include "sched/timing/served_model.h"
#include "sched/timing/timing_model.h"

namespace cachalot::sched {

struct FitCoefficient {
  const char* name;
  double usual;        // where fits start, and where they stay without evidence
  double uncertainty;  // of its logarithm
  double most = 1e6;   // beyond it times would soon be no finite number
};
inline constexpr double kLeastCoefficient = 1e-15;
inline constexpr std::size_t kFitCoefficients = 12;
// In the order of FittedModel's coefficients; times in seconds.
std::span<const FitCoefficient, kFitCoefficients> fit_coefficients();
using FitValues = std::array<double, kFitCoefficients>;

// One measured point: an instance under steady load of `concurrency` requests.
struct MeasuredRow {
  double tensor_parallel = 1;
  double input_tokens = 0, output_tokens = 0;
  double concurrency = 0;
  double ttft_s = 0, tpot_s = 0;
};

enum class Precision { kBf16, kFp8 };
// "bf16", "fp8". @errors kInvalidArgument
Result<Precision> parse_precision(const std::string& name);

// @return the coefficients that fit best; those about which `rows` say little stay near their usual value
FitValues fit_rows(std::span<const MeasuredRow> rows, const GpuSpec& gpu, const ServedModel& model,
                   Precision precision);

class FittedModel final : public TimingModel {
 public:
  struct Prediction {
    double ttft_s = 0, tpot_s = 0;
  };

  // @errors kInvalidArgument: a coefficient is not from kLeastCoefficient to its `most`; tensor_parallel below 1
  static Result<FittedModel> make(const FitValues& values, const GpuSpec& gpu,
                                  const ServedModel& model, Precision precision,
                                  double tensor_parallel);

  double step_seconds(std::span<const PrefillPart> prefill,
                      const DecodePart& decode) const override;
  double prefill_seconds(std::uint64_t input_tokens, std::uint64_t hit_tokens) const override;

  // Under steady load.
  Prediction predict(double input_tokens, double output_tokens, double concurrency) const;

 private:
  friend FitValues fit_rows(std::span<const MeasuredRow>, const GpuSpec&, const ServedModel&,
                            Precision);
  FittedModel(const FitValues& values, const GpuSpec& gpu, const ServedModel& model,
              Precision precision, double tensor_parallel);

  double prefill_compute_s(double new_tokens, double context_tokens) const;
  double decode_s(double sequences, double context_tokens) const;

  FitValues values_;
  ServedModel model_;
  // Seconds by the data sheet.
  double weights_s_, kv_token_s_, token_flops_s_, attention_flop_s_, reduce_token_s_;
  double reduces_;          // all-reduces of a step
  double capacity_tokens_;  // of the KV cache
};

}  // namespace cachalot::sched
