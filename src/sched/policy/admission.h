// Whether a request is computed or rejected at once, under overload.
//
//   none            admits all
//   reject_on_load  at arrival: the predicted TTFT only. The decode side is looked at after the prefill, which is
//                   wasted if its instance misses the goal: with what it has (DecodeCheck::kPresent), or would
//                   have with the request (kWithRequest), which then hits large requests first.
//   early           at arrival also the load of the decode side now
//   predictive      at arrival also the load of the decode side when this prefill will end
//
// The load of the decode side is predicted TBT / TBT goal of an instance that takes the request, with all others spread
// evenly. A load above 1 rejects. With early, requests that are still in prefill do not count yet: the decode side fills
// up after the decision, then rejects until it is empty. predictive looks at a later time, counts all whose prefill ends
// by then, and takes out what will have ended:
//
//   uniform      as Mooncake has it: each decode takes the same time, so an older one counts as ended even if it still
//                runs. Outputs vary, so the predicted load is too low, and more is admitted than the goal allows. The
//                time is the end of the request's own prefill.
//   exponential  each decode ends with the same rate, whatever its age. The time is the mean queue of the prefill side:
//                requests that come later are not known yet, and with its own end a long request would be admitted
//                before short ones.
//
// @source Mooncake (arXiv 2407.00079) §7
#pragma once

#include <cachalot/result.h>

#include <span>
#include <string>
#include <string_view>

#include "sched/policy/decode_choice.h"
#include "sched/policy/snapshot.h"

namespace cachalot::sched {

enum class AdmissionKind : std::uint8_t { kNone, kRejectOnLoad, kEarly, kPredictive };

std::string admission_names(const char* separator = ", ");
// @errors kInvalidArgument: no such policy; the message lists those there are
Result<AdmissionKind> parse_admission(std::string_view name);

enum class DecodePrediction : std::uint8_t { kUniform, kExponential };

// @errors kInvalidArgument: neither uniform nor exponential
Result<DecodePrediction> parse_decode_prediction(std::string_view name);

enum class DecodeCheck : std::uint8_t { kPresent, kWithRequest };

// @errors kInvalidArgument: neither present nor with_request
Result<DecodeCheck> parse_decode_check(std::string_view name);

struct AdmissionOptions {
  AdmissionKind kind = AdmissionKind::kNone;
  DecodePrediction prediction = DecodePrediction::kExponential;  // of kPredictive
  DecodeCheck check = DecodeCheck::kPresent;                     // of kRejectOnLoad
  double ttft_slo_s = std::numeric_limits<double>::infinity();
  double tbt_slo_s = std::numeric_limits<double>::infinity();
};

// A request that decodes or waits for it, or that is in prefill. at_s: when its prefill has ended (below 0) or will end.
struct DecodeShare {
  double at_s = 0;
  std::uint64_t context_tokens = 0;
};

struct LoadView {
  std::span<const DecodeShare> decoding;    // all instances together
  std::span<const DecodeShare> prefilling;  // likewise, without the request in hand
  double prefill_queue_s = 0;               // of a prefill instance, the mean
  std::uint64_t decode_instances = 0;       // 0: there is no decode side, and its load is 0
  double decode_s = 0;                      // the mean time that a decode takes
  const TimingModel* timing = nullptr;      // of decode
};

// Of an instance that takes a request of `context_tokens` now, with what decodes now.
double decode_load_now(const LoadView& load, double tbt_slo_s, std::uint64_t context_tokens);
// The same at `at_s`, with what will be left of it and what will have come.
double predicted_decode_load(const LoadView& load, double tbt_slo_s, DecodePrediction prediction,
                             double at_s, std::uint64_t context_tokens);

enum class Verdict : std::uint8_t { kAdmit, kRejectPrefill, kRejectDecode };

// At arrival. @param ttft_s  of the request, as route() predicts it
Verdict admit(const AdmissionOptions& options, double ttft_s, std::uint64_t input_tokens,
              const LoadView& load);

// After the prefill: false only for kRejectOnLoad, which did not look before.
bool admits_to_decode(const AdmissionOptions& options, const DecodeChoice& choice);

// The mean time that a decode takes, from those that have ended and those that still run: short ones end first, so the
// mean of the ended alone is too small. The maximum-likelihood estimate if each ends with the same rate. Infinity if
// none has ended.
// @param ended_s, running_s  sums of times so far
double mean_decode_seconds(double ended_s, std::uint64_t ended, double running_s);

}  // namespace cachalot::sched
