// Replays a recorded run of a real engine through the simulated one, and says how far apart they are.
#pragma once

#include <cachalot/result.h>

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "sched/timing/fitted_model.h"
#include "sched/timing/timing_model.h"
#include "sim/engine/engine.h"
#include "trace/run/recorded_run.h"

namespace cachalot::sim {

// Seconds. TTFT: first token - queued. Service: first token - scheduled. TPOT: (last token - first token) /
// (output tokens - 1), of requests with more than one. Makespan: last token of all - first queued.
struct RunFigures {
  double ttft_mean = 0, ttft_p50 = 0, ttft_p90 = 0, ttft_p99 = 0;
  double service_mean = 0, service_p50 = 0;
  double tpot_mean = 0, tpot_p50 = 0, tpot_p90 = 0, tpot_p99 = 0;
  double end_to_end_mean = 0, end_to_end_p50 = 0, end_to_end_p90 = 0, end_to_end_p99 = 0;
  double makespan = 0;
};

struct SimulatedRun {
  std::vector<RequestTimes> requests;  // in the order of the recorded ones
  std::vector<StepRecord> steps;
  std::uint64_t preemptions = 0;
};

// @errors as Engine::make(), Engine::submit()
Result<SimulatedRun> simulate_run(std::span<const trace::RecordedRequest> recorded,
                                  const EngineOptions& options, const sched::TimingModel& timing);

RunFigures figures_of(std::span<const trace::RecordedRequest> recorded);
// The run as one measured point: mean lengths, mean TTFT and TPOT, and the mean number of requests in flight.
// @errors kInvalidArgument: one of them is 0
Result<sched::MeasuredRow> row_of(std::span<const trace::RecordedRequest> recorded,
                                  double tensor_parallel);
RunFigures figures_of(std::span<const trace::RecordedRequest> recorded, const SimulatedRun& run);

// Relative and signed: 0.05 is 5 % above what was recorded.
double relative_error(double simulated, double recorded);

// Mean distance of two curves over time, sampled as they were recorded, relative to the recorded curve's mean.
struct CurveErrors {
  double running = 0;
  double kv_cache = 0;
  bool has_kv_cache = false;  // false: the recorded use is 0 throughout, so it was not recorded
};
CurveErrors curve_errors(std::span<const trace::RunSecond> recorded, const SimulatedRun& run,
                         std::uint64_t blocks);

}  // namespace cachalot::sim
