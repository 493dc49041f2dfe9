// The all-reduce link of an engine, from a recorded run of it: the bandwidth and latency with which the simulated run is
// most like the recorded one.
//
// TPOT says it, in which small all-reduces count (latency), and the time to the first token, in which large ones do
// (bandwidth). Where neither depends on one of the two, that one stays where it began.
#pragma once

#include <cachalot/result.h>

#include <functional>
#include <memory>

#include "sched/timing/timing_model.h"
#include "sim/run/run_comparison.h"
#include "trace/run/recorded_run.h"

namespace cachalot::sim {

struct Link {
  double bytes_per_second = 0;
  double latency_s = 0;
};

struct LinkFit {
  Link link;
  RunFigures simulated;  // with it
};

using TimingOfLink = std::function<Result<std::unique_ptr<sched::TimingModel>>(const Link&)>;

// @param  start  above 0
// @cost   846 simulated runs
// @errors as simulate_run(), and those of `timing`
Result<LinkFit> fit_link(const trace::RecordedRun& run, const EngineOptions& options,
                         const Link& start, const TimingOfLink& timing);

}  // namespace cachalot::sim
