// Measured TTFT and TPOT of engines, from a CSV file, by what one fitted model is made for.
//
//   gpu,engine,engine_version,model,precision,tp,isl,osl,concurrency,ttft_ms,tpot_ms
//   h100_sxm,vllm,0.12.0,Qwen/Qwen3-32B,bf16,2,1024,128,8,154.248,18.037
#pragma once

#include <cachalot/result.h>

#include <string>
#include <vector>

#include "sched/timing/fitted_model.h"

namespace cachalot::sched {

// What a fitted model is of.
struct FitSubject {
  std::string gpu, engine, model, precision;

  bool operator==(const FitSubject&) const = default;
  std::string text() const { return gpu + ", " + engine + ", " + model + ", " + precision; }
};

struct MeasuredGroup {
  FitSubject subject;
  std::vector<MeasuredRow> rows;
};

// @return the groups in the order in which the file has them
// @errors kInvalidArgument: no such file; kBadInput: a column is unknown or missing, a value is none or not above 0,
//         a GPU, model or precision is not known; kIo
Result<std::vector<MeasuredGroup>> read_measured_rows(const std::string& path);

}  // namespace cachalot::sched
