// `cachalot calibrate --runs` and `--run`: what recorded runs tell, measured points and the link of an engine's GPUs.
#pragma once

#include <cachalot/result.h>

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>
#include "flags.h"

#include "sched/calibration/measured_rows.h"

namespace cachalot::apps {

struct CalibrationRunFlags {
  std::vector<std::string> runs;  // of one engine, under different loads
  std::string gpu, model, engine = "vllm", precision = "bf16";
  std::uint64_t tensor_parallel = 1;
  std::string run, profile, meta;  // whose link is fitted
};

void add_calibration_run_flags(Command& command, CalibrationRunFlags& flags);

// Each of flags.runs as a row of one group.
// @errors kInvalidArgument: an unknown GPU, model or precision; no such file; kBadInput: a file's content
Result<std::vector<sched::MeasuredGroup>> rows_of_runs(const CalibrationRunFlags& flags);

// The link of flags.run, printed to `out`. @return what goes into the JSON. @errors as above
Result<nlohmann::json> fit_link_of_run(const CalibrationRunFlags& flags, std::FILE* out);

}  // namespace cachalot::apps
