// Whether a request is computed or rejected at once, under overload.
//
//   none            admits all
//   reject_on_load  at arrival: the predicted TTFT only. The decode side is looked at after the prefill, which is
//                   wasted if that has no room for its goal.
//   early           at arrival also the load of the decode side now
//   predictive      at arrival also the load of the decode side when this prefill will end
//
// The load of the decode side is the mean over its instances of predicted TBT / TBT goal. A load above 1 rejects.
// With early, requests that are still in prefill do not count yet: the decode side fills up after the decision, then
// rejects until it is empty. predictive counts them, and takes out what will have ended: it assumes that each decode
// takes the same time.
// @source Mooncake (arXiv 2407.00079) §7
#pragma once

#include <cachalot/result.h>

#include <span>
#include <string>
#include <string_view>

#include "sched/policy/snapshot.h"

namespace cachalot::sched {

enum class AdmissionKind : std::uint8_t { kNone, kRejectOnLoad, kEarly, kPredictive };

const char* admission_name(AdmissionKind kind);
std::string admission_names(const char* separator = ", ");
// @errors kInvalidArgument: no such policy; the message lists those there are
Result<AdmissionKind> parse_admission(std::string_view name);

struct AdmissionOptions {
  AdmissionKind kind = AdmissionKind::kNone;
  double ttft_slo_s = std::numeric_limits<double>::infinity();
  double tbt_slo_s = std::numeric_limits<double>::infinity();
};

// A request that decodes or waits for it (at_s <= 0: since when), or that is in prefill (at_s: when that will end).
struct DecodeShare {
  double at_s = 0;
  std::uint64_t context_tokens = 0;
};

struct LoadView {
  std::span<const DecodeShare> decoding;    // all instances together
  std::span<const DecodeShare> prefilling;  // likewise, without the request in hand
  std::uint64_t decode_instances = 0;       // 0: there is no decode side, and its load is 0
  double decode_s = 0;                      // that a decode takes, as assumed by kPredictive
  const TimingModel* timing = nullptr;      // of decode
};

// Predicted TBT / goal at `at_s`, the mean over instances with sequences spread evenly: of what decodes now; with
// `predicts` also of what will have come and without what will have ended. `more` is added.
double decode_load(const LoadView& load, double tbt_slo_s, double at_s, bool predicts,
                   const DecodeShare& more);

enum class Verdict : std::uint8_t { kAdmit, kRejectPrefill, kRejectDecode };

// At arrival. @param ttft_s  of the request, as route() predicts it
Verdict admit(const AdmissionOptions& options, double ttft_s, std::uint64_t input_tokens,
              const LoadView& load);

// After the prefill. @param tbt_s  as choose_decode() predicts it
bool admits_to_decode(const AdmissionOptions& options, double tbt_s);

}  // namespace cachalot::sched
