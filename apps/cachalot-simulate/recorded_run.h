// `cachalot simulate --trace-format vllm-run`: replays a recorded run of a real engine.
#pragma once

#include <cachalot/result.h>

#include <cstdint>
#include <string>
#include <vector>

#include "flags.h"
#include "sched/timing/gpu_spec.h"

namespace cachalot::apps {

inline constexpr const char* kRecordedRunFormat = "vllm-run";

struct RecordedRunFlags {
  std::string profile, meta, seconds;
  std::string link_gb_s, link_us;
  bool compare = false;

  bool operator==(const RecordedRunFlags&) const = default;
};

// --profile, --meta, --seconds, --tp-link-gb-s, --tp-link-us, --compare, and --colocated unless the command has it.
void add_recorded_run_flags(Command& command, RecordedRunFlags& flags, std::uint64_t& colocated);

// With the all-reduce link that the flags say.
sched::GpuSpec with_link(sched::GpuSpec gpu, const RecordedRunFlags& flags);

struct RecordedRunFiles {
  std::string trace, csv, json;
  std::vector<std::string> inputs;
};

// The files that are read for these flags, and with a run of this trace.
std::vector<std::string> inputs_of(const RecordedRunFlags& flags, const std::string& trace);

// @errors kInvalidArgument: names a flag that a recorded run has no use for
Status check_recorded_run_flags(const Command& command);
// The other way round. @errors kInvalidArgument: names a flag that is of a recorded run alone
Status check_trace_flags(const Command& command);

// Milliseconds; 0: none.
struct LatencyGoals {
  double ttft_ms = 0, tbt_ms = 0;
};

// @param colocated  engines as the command line has them; 0: not given
// @errors kInvalidArgument: a flag, or what was recorded is of another model or tensor parallelism than the profile;
//         kBadInput: a file; as Output
Status simulate_recorded_run(const RecordedRunFlags& flags, const RecordedRunFiles& files,
                             const LatencyGoals& goals, std::uint64_t colocated);

}  // namespace cachalot::apps
