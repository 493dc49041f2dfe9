#include "sched/policy/admission.h"

#include <algorithm>
#include <cmath>

#include "sched/policy/decode_choice.h"
#include "sched/policy/names.h"

namespace cachalot::sched {
namespace {

constexpr Name<AdmissionKind> kAdmissionNames[] = {
    {AdmissionKind::kNone, "none"},
    {AdmissionKind::kRejectOnLoad, "reject_on_load"},
    {AdmissionKind::kEarly, "early"},
    {AdmissionKind::kPredictive, "predictive"},
};
constexpr Name<DecodePrediction> kPredictionNames[] = {
    {DecodePrediction::kUniform, "uniform"}, {DecodePrediction::kExponential, "exponential"}};
constexpr Name<DecodeCheck> kCheckNames[] = {{DecodeCheck::kPresent, "present"},
                                             {DecodeCheck::kWithRequest, "with_request"}};

// Of requests, in parts.
struct Sum {
  double sequences = 0, context = 0;

  void add(const DecodeShare& share, double part) {
    sequences += part;
    context += part * static_cast<double>(share.context_tokens);
  }
};

double load_of(const LoadView& load, const Sum& sum, double tbt_slo_s,
               std::uint64_t context_tokens) {
  if (load.decode_instances == 0) return 0;
  const auto instances = static_cast<double>(load.decode_instances);
  const double tbt_s =
      predicted_tbt(*load.timing, static_cast<std::uint64_t>(sum.sequences / instances) + 1,
                    static_cast<std::uint64_t>(sum.context / instances) + context_tokens);
  return tbt_s / tbt_slo_s;
}

// Of a request that decodes from share.at_s on, what counts at `at_s`.
double part_left(const DecodeShare& share, double decode_s, DecodePrediction prediction,
                 double at_s) {
  if (prediction == DecodePrediction::kUniform) {
    return share.at_s <= at_s && at_s < share.at_s + decode_s ? 1 : 0;
  }
  // What has decoded so far does not tell how long it will go on; what is still in prefill then counts as begun.
  const double since_s = std::min(std::max(share.at_s, 0.0), at_s);
  return std::exp(-(at_s - since_s) / decode_s);
}

}  // namespace

std::string admission_names(const char* separator) {
  return list_names(kAdmissionNames, separator);
}

Result<AdmissionKind> parse_admission(std::string_view name) {
  return parse_name("no admission", kAdmissionNames, name);
}

Result<DecodePrediction> parse_decode_prediction(std::string_view name) {
  return parse_name("no decode prediction", kPredictionNames, name);
}

Result<DecodeCheck> parse_decode_check(std::string_view name) {
  return parse_name("no decode check", kCheckNames, name);
}

double decode_load_now(const LoadView& load, double tbt_slo_s, std::uint64_t context_tokens) {
  Sum sum;
  for (const DecodeShare& share : load.decoding) sum.add(share, 1);
  return load_of(load, sum, tbt_slo_s, context_tokens);
}

double predicted_decode_load(const LoadView& load, double tbt_slo_s, DecodePrediction prediction,
                             double at_s, std::uint64_t context_tokens) {
  Sum sum;
  for (const DecodeShare& share : load.decoding) {
    sum.add(share, part_left(share, load.decode_s, prediction, at_s));
  }
  for (const DecodeShare& share : load.prefilling) {
    sum.add(share, part_left(share, load.decode_s, prediction, at_s));
  }
  return load_of(load, sum, tbt_slo_s, context_tokens);
}

Verdict admit(const AdmissionOptions& options, double ttft_s, std::uint64_t input_tokens,
              const LoadView& load) {
  if (options.kind == AdmissionKind::kNone) return Verdict::kAdmit;
  if (ttft_s > options.ttft_slo_s) return Verdict::kRejectPrefill;
  if (options.kind == AdmissionKind::kRejectOnLoad) return Verdict::kAdmit;
  double decode_load = 0;
  if (options.kind == AdmissionKind::kEarly) {
    decode_load = decode_load_now(load, options.tbt_slo_s, input_tokens);
  } else {
    const bool is_uniform = options.prediction == DecodePrediction::kUniform;
    decode_load = predicted_decode_load(load, options.tbt_slo_s, options.prediction,
                                        is_uniform ? ttft_s : load.prefill_queue_s, input_tokens);
  }
  return decode_load > 1 ? Verdict::kRejectDecode : Verdict::kAdmit;
}

bool admits_to_decode(const AdmissionOptions& options, const DecodeChoice& choice) {
  if (options.kind != AdmissionKind::kRejectOnLoad) return true;
  const bool is_present = options.check == DecodeCheck::kPresent;
  return (is_present ? choice.present_s : choice.tbt_s) <= options.tbt_slo_s;
}

double mean_decode_seconds(double ended_s, std::uint64_t ended, double running_s) {
  if (ended == 0) return std::numeric_limits<double>::infinity();
  return (ended_s + running_s) / static_cast<double>(ended);
}

}  // namespace cachalot::sched
