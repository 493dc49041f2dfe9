// From where `cachalot simulate` takes the times of a cluster's steps: the published formula, a fitted model, a profile.
#pragma once

#include <cachalot/result.h>

#include <cstdint>
#include <memory>
#include <string>

#include "flags.h"
#include "recorded_run.h"
#include "sched/timing/timing_model.h"

namespace cachalot::apps {

struct TimingFlags {
  std::string model, hardware;  // empty: kDefaultModel and kDefaultHardware, or the profile's
  std::string calibration;      // a file of fitted models
  std::string precision = "bf16";
  double decode_memory_gb_s = 0, decode_overhead_ms = -1;  // of the formula; the preset's

  bool operator==(const TimingFlags&) const = default;
};

inline constexpr const char* kDefaultModel = "LLaMA3-70B";
inline constexpr const char* kDefaultHardware = "8xA800_SXM";

// --model, --hardware, --calibration, --precision, --decode-memory-gb-s and --decode-overhead-ms.
void add_timing_flags(Command& command, TimingFlags& flags);

// What the policies and the cluster need to know of model and hardware.
struct Timing {
  std::shared_ptr<const sched::TimingModel> prefill, decode;
  double kv_bytes_per_token = 0;
  std::uint64_t decode_capacity_tokens = 0;  // KV that an instance has room for
  double layers = 0;
  double gpus = 1;              // of an instance
  double host_bytes_per_s = 0;  // of an instance to its host's memory, each way
  std::string model, hardware;  // the flags or their defaults
  std::string source;           // for people
};

// @param  profile  its --profile, --tp-link-gb-s and --tp-link-us count
// @param  step_tokens  of an engine's step
// @errors kInvalidArgument: an unknown model or GPU, none that was fitted, flags that contradict each other;
//         kBadInput: a file's content
Result<Timing> timing_of(const TimingFlags& flags, const RecordedRunFlags& profile,
                         std::uint64_t step_tokens);

}  // namespace cachalot::apps
