// A simulated cluster: prefill and decode instances, caches, links, and the policies that a router runs.
//
// 1. Equal options and workloads give equal reports, to the last bit: there is no clock and no other chance than the
//    seed's.
// 2. Every request ends once. 3. No cache and no decode instance holds more than its capacity.
//
// A request arrives, is admitted or rejected, and is routed. Transfers of KV begin at once; the request waits in its
// instance's queue, first come, first served. When its turn comes and its transfers have ended, it is computed with the
// prefix that is there by then, which is at least what was transferred. The end of the prefill is its first token.
// Then the KV goes to a decode instance, over the links of both, or through the pool.
#pragma once

#include <cachalot/result.h>

#include <functional>

#include "sim/cluster/cluster_options.h"
#include "sim/cluster/report.h"
#include "sim/cluster/workload.h"

namespace cachalot::sim {

struct ClusterTiming {
  const sched::TimingModel* prefill = nullptr;
  const sched::TimingModel* decode = nullptr;
};

// @param  on_progress  gets the part of the requests that have arrived, now and then; may be empty
// @errors as check(); kInvalidArgument: a request that no decode instance could ever hold
Result<ClusterReport> simulate(const ClusterOptions& options, const Workload& workload,
                               const ClusterTiming& timing,
                               const std::function<void(double)>& on_progress = {});

}  // namespace cachalot::sim
