// All flags of `cachalot simulate`.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "cluster_flags.h"
#include "cost.h"
#include "engine_flags.h"
#include "recorded_run.h"
#include "timing_source.h"
#include "trace_flags.h"

namespace cachalot::apps {

struct SimulateOptions {
  TraceFlags trace;
  ClusterFlags cluster;
  CostFlags cost;
  RecordedRunFlags recorded;
  std::vector<std::string> policies = {"conductor"};
  std::vector<std::string> admissions = {"none"};
  std::vector<double> rate_scales = {1};
  TimingFlags timing;
  EngineFlags engine;
  std::vector<std::string> map;  // axes, as "FLAG=VALUE,VALUE…"
  std::string map_by;            // none: mean_ttft
  std::uint64_t limit = 0, closed_loop = 0, passes = 1;
  std::string csv, json, plot;
};

}  // namespace cachalot::apps
