#include "sched/policy/admission.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "sched/policy/decode_choice.h"

namespace cachalot::sched {
namespace {

struct Name {
  AdmissionKind kind;
  const char* text;
};
constexpr std::array kNames = {
    Name{AdmissionKind::kNone, "none"},
    Name{AdmissionKind::kRejectOnLoad, "reject_on_load"},
    Name{AdmissionKind::kEarly, "early"},
    Name{AdmissionKind::kPredictive, "predictive"},
};

}  // namespace

const char* admission_name(AdmissionKind kind) {
  for (const Name& name : kNames) {
    if (name.kind == kind) return name.text;
  }
  return "";
}

std::string admission_names(const char* separator) {
  std::string text;
  for (const Name& name : kNames) text += (text.empty() ? "" : separator) + std::string(name.text);
  return text;
}

Result<AdmissionKind> parse_admission(std::string_view name) {
  for (const Name& known : kNames) {
    if (name == known.text) return known.kind;
  }
  return Error::make(Code::kInvalidArgument, "admission: no \"%.*s\", expected one of: %s",
                     static_cast<int>(std::min<std::size_t>(name.size(), 60)), name.data(),
                     admission_names().c_str());
}

double decode_load(const LoadView& load, double tbt_slo_s, double at_s, bool predicts,
                   std::uint64_t context_tokens) {
  if (load.decode_instances == 0) return 0;
  double sequences = 0, context = 0;
  const auto count = [&](const DecodeShare& share, double since_s) {
    const double part = predicts ? std::exp(-(at_s - since_s) / load.decode_s) : 1;
    sequences += part;
    context += part * static_cast<double>(share.context_tokens);
  };
  for (const DecodeShare& share : load.decoding) count(share, 0);
  if (predicts) {
    for (const DecodeShare& share : load.prefilling) count(share, std::min(share.at_s, at_s));
  }
  const auto instances = static_cast<double>(load.decode_instances);
  const double tbt_s =
      predicted_tbt(*load.timing, static_cast<std::uint64_t>(sequences / instances) + 1,
                    static_cast<std::uint64_t>(context / instances) + context_tokens);
  return tbt_s / tbt_slo_s;
}

Verdict admit(const AdmissionOptions& options, double ttft_s, std::uint64_t input_tokens,
              const LoadView& load) {
  if (options.kind == AdmissionKind::kNone) return Verdict::kAdmit;
  if (ttft_s > options.ttft_slo_s) return Verdict::kRejectPrefill;
  if (options.kind == AdmissionKind::kRejectOnLoad) return Verdict::kAdmit;
  const bool predicts = options.kind == AdmissionKind::kPredictive;
  const double at_s = predicts ? load.prefill_queue_s : 0;
  const bool is_over = decode_load(load, options.tbt_slo_s, at_s, predicts, input_tokens) > 1;
  return is_over ? Verdict::kRejectDecode : Verdict::kAdmit;
}

bool admits_to_decode(const AdmissionOptions& options, double tbt_s) {
  return options.kind != AdmissionKind::kRejectOnLoad || tbt_s <= options.tbt_slo_s;
}

}  // namespace cachalot::sched
