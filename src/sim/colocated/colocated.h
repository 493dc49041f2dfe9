// A simulated cluster of colocated instances: each is an engine that computes prompts in chunks beside its decodes.
//
// 1. Equal options and workloads give equal reports, to the last bit. 2. Every request ends once.
// 3. No engine and no cache holds more than its capacity.
//
// A request arrives, is admitted or rejected, and is routed by the same functions as prefill instances are. Beside the
// KV blocks of its engine an instance may have a cache in its host's memory, there may be a pool that all share, and
// conductor brings prefixes from other instances: all as in sim/cluster, for the prompt's KV. A request whose KV has to
// come over a link enters its engine when it is there. The host's own cache costs no time, as in sim/cluster.
#pragma once

#include <cachalot/result.h>

#include <functional>

#include "sim/cluster/cluster.h"
#include "sim/engine/engine.h"

namespace cachalot::sim {

struct ColocatedOptions {
  // `prefill` is the number of instances, `decode` is 0, and what belongs to decode instances has no meaning.
  ClusterOptions cluster;
  EngineOptions engine;  // of each
};

// @param  timing  `decode` times steps that decode, with and without prompts beside; `prefill` all others, and what
//                 routing and admission predict
// @errors as check() of cluster and engine; kInvalidArgument: there are decode instances, or blocks of the workload
//         are not whole blocks of the engine
Result<ClusterReport> simulate_colocated(const ColocatedOptions& options, const Workload& workload,
                                         const ClusterTiming& timing,
                                         const std::function<void(double)>& on_progress = {});

}  // namespace cachalot::sim
