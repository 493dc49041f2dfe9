// `cachalot simulate --trace-format vllm-run`, and other recorded runs: replays a recorded run of a real engine.
#pragma once

#include <cachalot/result.h>

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "flags.h"
#include "sched/timing/gpu_spec.h"
#include "sched/timing/profile_model.h"
#include "sim/engine/engine.h"
#include "trace/run/recorded_run.h"

namespace cachalot::apps {

struct RecordedRunFlags {
  std::string profile, meta, seconds;
  std::string link, link_gb_s, link_us;
  bool compare = false;

  bool operator==(const RecordedRunFlags&) const = default;
};

// --profile, --meta, --seconds, --tp-link, --tp-link-gb-s, --tp-link-us, --compare, and --colocated unless the command has it.
void add_recorded_run_flags(Command& command, RecordedRunFlags& flags, std::uint64_t& colocated);

// A recorded engine's timing, but for the link that its GPUs reduce over.
struct ProfiledEngine {
  sched::ProfileTables tables;
  sched::ServedModel model;
  sched::GpuSpec gpu;  // with the link that the flags say
  sched::ProfileOptions options;

  Result<sched::ProfileModel> timing(const sched::GpuSpec& with_link) const {
    return sched::ProfileModel::make(tables, model, with_link, options);
  }
};
// Of flags.profile. @errors kInvalidArgument: it is not of the run's engine; kBadInput: a file
Result<ProfiledEngine> profiled_engine(const RecordedRunFlags& flags,
                                       const trace::RunOptions& recorded);
// @errors kInvalidArgument: the model does not fit
Result<sim::EngineOptions> engine_of(const trace::RunOptions& recorded,
                                     const sched::ProfileModel& timing);

// With the all-reduce link that the flags say.
sched::GpuSpec with_link(sched::GpuSpec gpu, const RecordedRunFlags& flags);

struct RecordedRunFiles {
  std::string trace;
  std::string format;  // --trace-format: one of trace::run_format_name()
  std::string csv, json;
  std::vector<std::string> inputs;
};

// The files that are read for these flags, and with a run of this trace.
std::vector<std::string> inputs_of(const RecordedRunFlags& flags, const std::string& trace);

// @errors kInvalidArgument: names a flag that a recorded run has no use for
Status check_recorded_run_flags(const Command& command);

// Milliseconds; 0: none.
struct LatencyGoals {
  double ttft_ms = 0, tbt_ms = 0;
};

// @param colocated  engines as the command line has them; 0: not given
// @param source     keys for the JSON that say what the run came from
// @errors kInvalidArgument: a flag, or what was recorded is of another model or tensor parallelism than the profile;
//         kBadInput: a file; as Output
Status simulate_recorded_run(const RecordedRunFlags& flags, const RecordedRunFiles& files,
                             const LatencyGoals& goals, std::uint64_t colocated,
                             const nlohmann::json& source);

}  // namespace cachalot::apps
