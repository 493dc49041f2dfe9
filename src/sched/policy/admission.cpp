#include "sched/policy/admission.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "sched/policy/decode_choice.h"

namespace cachalot::sched {
namespace {

struct AdmissionName {
  AdmissionKind kind;
  const char* text;
};
constexpr std::array kAdmissionNames = {
    AdmissionName{AdmissionKind::kNone, "none"},
    AdmissionName{AdmissionKind::kRejectOnLoad, "reject_on_load"},
    AdmissionName{AdmissionKind::kEarly, "early"},
    AdmissionName{AdmissionKind::kPredictive, "predictive"},
};

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

const char* admission_name(AdmissionKind kind) {
  for (const AdmissionName& name : kAdmissionNames) {
    if (name.kind == kind) return name.text;
  }
  return "";
}

std::string admission_names(const char* separator) {
  std::string text;
  for (const AdmissionName& name : kAdmissionNames)
    text += (text.empty() ? "" : separator) + std::string(name.text);
  return text;
}

Result<AdmissionKind> parse_admission(std::string_view name) {
  for (const AdmissionName& known : kAdmissionNames) {
    if (name == known.text) return known.kind;
  }
  return Error::make(Code::kInvalidArgument, "admission: no \"%.*s\", expected one of: %s",
                     static_cast<int>(std::min<std::size_t>(name.size(), 60)), name.data(),
                     admission_names().c_str());
}

const char* decode_prediction_name(DecodePrediction prediction) {
  return prediction == DecodePrediction::kUniform ? "uniform" : "exponential";
}

Result<DecodePrediction> parse_decode_prediction(std::string_view name) {
  for (const auto known : {DecodePrediction::kUniform, DecodePrediction::kExponential}) {
    if (name == decode_prediction_name(known)) return known;
  }
  return Error::make(Code::kInvalidArgument,
                     "decode prediction: no \"%.*s\", expected one of: uniform, exponential",
                     static_cast<int>(std::min<std::size_t>(name.size(), 60)), name.data());
}

const char* decode_check_name(DecodeCheck check) {
  return check == DecodeCheck::kPresent ? "present" : "with_request";
}

Result<DecodeCheck> parse_decode_check(std::string_view name) {
  for (const auto known : {DecodeCheck::kPresent, DecodeCheck::kWithRequest}) {
    if (name == decode_check_name(known)) return known;
  }
  return Error::make(Code::kInvalidArgument,
                     "decode check: no \"%.*s\", expected one of: present, with_request",
                     static_cast<int>(std::min<std::size_t>(name.size(), 60)), name.data());
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
