// The flags of `cachalot simulate`, and the ways to run it.
#pragma once

#include <cachalot/result.h>

#include <string>

namespace cachalot::apps {

struct SimulateOptions {
  std::string trace, trace_format = "auto";
  std::string profile, meta, seconds;
  std::string colocated;
  std::string link_gb_s, link_us;
  bool compare = false;
  std::string csv, json;
};

// Replays a recorded run of a real engine: --trace-format vllm-run.
Status simulate_recorded_run(const SimulateOptions& options);

}  // namespace cachalot::apps
