// Timing of a model on hardware by name, from the published formula: "LLaMA3-70B" on "8xA800_SXM".
//
// Two pairs have a correction c that follows from published measurements; for all others c is that of the first, and
// the preset says that it is an estimate.
#pragma once

#include <cachalot/result.h>

#include <cstdint>
#include <string>
#include <string_view>

#include "sched/timing/formula_model.h"
#include "sched/timing/gpu_spec.h"
#include "sched/timing/served_model.h"

namespace cachalot::sched {

struct TimingPreset {
  ServedModel model;
  GpuSpec gpu;
  double gpus = 1;  // of one instance
  FormulaParameters formula;
  std::uint64_t kv_capacity_tokens = 0;
  bool is_estimate = true;  // of prefill; decode is one always
  const char* source = "";
};

// @param hardware  a GPU of find_gpu(), or several of them: "8xA800_SXM"
// @errors kInvalidArgument: no such model or GPU; the model does not fit
Result<TimingPreset> find_timing_preset(std::string_view model, std::string_view hardware);

}  // namespace cachalot::sched
