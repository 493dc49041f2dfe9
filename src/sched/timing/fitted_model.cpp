#include "sched/timing/fitted_model.h"

#include <algorithm>
#include <cmath>

#include "sched/timing/least_squares.h"

namespace cachalot::sched {
namespace {

enum Index : std::size_t {
  kReadWeights,
  kReadKv,
  kCompute,
  kAttention,
  kReduce,
  kStep,
  kReduceLatency,
  kAhead,
  kAheadLoad,
  kLoadPower,
  kRequest,
  kSequence
};

// The usual values: what engines on these GPUs are known to reach of the data sheet (compute 60 %, memory 65 to 85 %),
// and orders of magnitude for the rest. Uncertainty says how far a fit may go without much evidence.
constexpr std::array<FitCoefficient, kFitCoefficients> kCoefficients = {{
    {"read_weights", 1.2, 0.3},
    {"read_kv", 1.8, 0.5},
    {"compute", 1.6, 0.3},
    {"attention", 1.0, 0.7},
    {"reduce", 1.5, 0.7},
    {"step_s", 0.003, 0.7},
    {"reduce_latency_s", 3e-6, 0.7},
    {"ahead", 3.0, 0.5},
    {"ahead_load", 0.1, 0.7},
    {"load_power", 0.8, 0.3, 10},
    {"request_s", 0.02, 0.7},
    {"sequence_s", 14e-6, 0.7},
}};

// Share of the GPU's memory that the engine uses, what it needs beside weights and KV, and how much of its output a
// request has on average when the KV is full.
constexpr double kMemoryShare = 0.9, kReservedBytes = 4e9, kOutputShare = 0.8;

// Beyond this factor (its logarithm) a row counts hardly more: rows that waited for memory say little of times.
constexpr double kFarOff = 0.3;
double bounded(double residual) {
  return kFarOff * std::atan(residual / kFarOff);
}

// TTFT varies more from run to run than TPOT does.
constexpr double kTtftWeight = 0.7, kUsualWeight = 0.05;

}  // namespace

std::span<const FitCoefficient, kFitCoefficients> fit_coefficients() {
  return kCoefficients;
}

Result<Precision> parse_precision(const std::string& name) {
  if (name == "bf16") return Precision::kBf16;
  if (name == "fp8") return Precision::kFp8;
  return Error::make(Code::kInvalidArgument, "precision is \"%.40s\", expected bf16 or fp8",
                     name.c_str());
}

FittedModel::FittedModel(const FitValues& values, const GpuSpec& gpu, const ServedModel& model,
                         Precision precision, double tensor_parallel)
    : values_(values), model_(model) {
  const double number_bytes = precision == Precision::kBf16 ? 2 : 1;
  const double flops = precision == Precision::kBf16 ? gpu.bf16_flops : gpu.fp8_flops;
  // Embedding and output head stay in bf16; a step reads the head.
  const double weights = model.layer_weights() * number_bytes + model.vocabulary_weights() * 2;
  const double kv_token = model.kv_numbers_per_token() * number_bytes;
  weights_s_ = weights / tensor_parallel / gpu.memory_bytes_per_second;
  kv_token_s_ = kv_token / tensor_parallel / gpu.memory_bytes_per_second;
  token_flops_s_ = model.flops_per_token() / tensor_parallel / flops;
  attention_flop_s_ = 1 / tensor_parallel / gpu.bf16_flops;
  reduces_ = tensor_parallel > 1 ? 2 * model.layers : 0;
  reduce_token_s_ = 2 * model.layers * 2 * (tensor_parallel - 1) / tensor_parallel * model.width *
                    2 / gpu.link_bytes_per_second;
  const double memory = gpu.memory_bytes * kMemoryShare - kReservedBytes -
                        (weights + model.vocabulary_weights() * 2) / tensor_parallel;
  capacity_tokens_ = std::max(memory, 0.0) / (kv_token / tensor_parallel);
}

Result<FittedModel> FittedModel::make(const FitValues& values, const GpuSpec& gpu,
                                      const ServedModel& model, Precision precision,
                                      double tensor_parallel) {
  for (std::size_t i = 0; i < kFitCoefficients; ++i) {
    const FitCoefficient& known = kCoefficients[i];
    if (values[i] >= kLeastCoefficient && values[i] <= known.most) continue;
    return Error::make(Code::kInvalidArgument, "%s is %g, expected a number from %g to %.0f",
                       known.name, values[i], kLeastCoefficient, known.most);
  }
  if (!(tensor_parallel >= 1)) {
    return Error::make(Code::kInvalidArgument, "tensor parallelism is %g, expected at least 1",
                       tensor_parallel);
  }
  if (precision == Precision::kFp8 && gpu.fp8_flops == 0) {
    return Error::make(Code::kInvalidArgument, "precision fp8: %s has no fp8 operations", gpu.name);
  }
  return FittedModel(values, gpu, model, precision, tensor_parallel);
}

double FittedModel::prefill_compute_s(double new_tokens, double context_tokens) const {
  return values_[kCompute] * new_tokens * token_flops_s_ +
         values_[kAttention] * model_.attention_flops(new_tokens, context_tokens) *
             attention_flop_s_ +
         values_[kReduce] * new_tokens * reduce_token_s_;
}

double FittedModel::decode_s(double sequences, double context_tokens) const {
  return values_[kStep] + values_[kReadWeights] * weights_s_ +
         values_[kReadKv] * context_tokens * kv_token_s_ +
         sequences * (values_[kReduce] * reduce_token_s_ + values_[kSequence]) +
         values_[kReduceLatency] * reduces_;
}

double FittedModel::step_seconds(std::span<const PrefillPart> prefill,
                                 const DecodePart& decode) const {
  double seconds = 0;
  for (const PrefillPart& part : prefill) {
    seconds += prefill_compute_s(static_cast<double>(part.new_tokens),
                                 static_cast<double>(part.context_tokens));
  }
  if (decode.sequences != 0) {
    return seconds + decode_s(static_cast<double>(decode.sequences),
                              static_cast<double>(decode.context_tokens));
  }
  if (seconds == 0) return 0;
  // Few prompt tokens read the weights all the same.
  return values_[kStep] + values_[kReduceLatency] * reduces_ +
         std::max(seconds, values_[kReadWeights] * weights_s_);
}

double FittedModel::prefill_seconds(std::uint64_t input_tokens, std::uint64_t hit_tokens) const {
  if (hit_tokens >= input_tokens) return 0;
  const PrefillPart part[] = {
      {.new_tokens = input_tokens - hit_tokens, .context_tokens = hit_tokens}};
  return step_seconds(part, {});
}

FittedModel::Prediction FittedModel::predict(double input_tokens, double output_tokens,
                                             double concurrency) const {
  const double fits = capacity_tokens_ / (input_tokens + kOutputShare * output_tokens);
  const double together = std::min(concurrency, std::max(fits, 1.0));
  const double prefill = prefill_compute_s(input_tokens, 0);
  const double decode = decode_s(together, together * (input_tokens + output_tokens / 2));
  Prediction prediction;
  prediction.tpot_s = decode + prefill * (together - 1) / output_tokens;
  prediction.ttft_s =
      values_[kRequest] + decode +
      prefill * (values_[kAhead] + values_[kAheadLoad] * std::pow(together, values_[kLoadPower]));
  if (concurrency > together) {
    prediction.ttft_s += (concurrency - together) / together *
                         (prediction.ttft_s + output_tokens * prediction.tpot_s);
  }
  return prediction;
}

FitValues fit_rows(std::span<const MeasuredRow> rows, const GpuSpec& gpu, const ServedModel& model,
                   Precision precision) {
  // Logarithms are fitted: so coefficients stay above 0, and errors count relatively.
  std::array<double, kFitCoefficients> usual;
  for (std::size_t i = 0; i < kFitCoefficients; ++i) usual[i] = std::log(kCoefficients[i].usual);
  const Residuals residuals = [&](std::span<const double> logs, std::vector<double>& out) {
    FitValues values;
    for (std::size_t i = 0; i < kFitCoefficients; ++i) values[i] = std::exp(logs[i]);
    out.clear();
    for (const MeasuredRow& row : rows) {
      const FittedModel fitted(values, gpu, model, precision, row.tensor_parallel);
      const FittedModel::Prediction said =
          fitted.predict(row.input_tokens, row.output_tokens, row.concurrency);
      out.push_back(bounded(kTtftWeight * std::log(said.ttft_s / row.ttft_s)));
      out.push_back(bounded(std::log(said.tpot_s / row.tpot_s)));
    }
    for (std::size_t i = 0; i < kFitCoefficients; ++i)
      out.push_back(kUsualWeight * (logs[i] - usual[i]) / kCoefficients[i].uncertainty);
  };
  const std::vector<double> logs = minimize_squares(residuals, usual);
  FitValues fitted;
  for (std::size_t i = 0; i < kFitCoefficients; ++i) fitted[i] = std::exp(logs[i]);
  return fitted;
}

}  // namespace cachalot::sched
