// Fitted models in a JSON file: { "models": [ { "gpu", "engine", "model", "precision", "coefficients": {…} } ] }.
#pragma once

#include <cachalot/result.h>

#include <span>
#include <string>
#include <vector>

#include "sched/calibration/measured_rows.h"

namespace cachalot::sched {

struct FittedEntry {
  FitSubject subject;
  FitValues values;
};

// One fitted model for each group. @pre the groups are read_measured_rows()'s
std::vector<FittedEntry> fit_groups(std::span<const MeasuredGroup> groups);

// @errors kInvalidArgument: no such file; kBadInput: no JSON, a key is missing, unknown or there twice, a value; kIo
Result<std::vector<FittedEntry>> read_fitted_file(const std::string& path);

// Relative and absolute errors: 0.05 is 5 % off. Over rows of concurrency kLeastConcurrency and more.
inline constexpr double kLeastConcurrency = 8;
struct FitErrors {
  FitSubject subject;    // of a group
  std::size_t rows = 0;  // counted; with 0 the errors are 0
  double ttft_median = 0, tpot_median = 0, ttft_p90 = 0, tpot_p90 = 0;
};
struct FitReport {
  FitErrors all;
  std::vector<FitErrors> groups;
};

// @errors kInvalidArgument: a group has no model in `models`
Result<FitReport> check_groups(std::span<const MeasuredGroup> groups,
                               std::span<const FittedEntry> models);

}  // namespace cachalot::sched
