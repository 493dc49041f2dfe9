// Which requests of a trace each host takes.
#pragma once

#include <cstddef>
#include <vector>

#include "replay/pool/workload.h"

namespace cachalot::replay {

// @return for each host the numbers of its requests, in the order of the trace; each request is in one of them
std::vector<std::vector<std::size_t>> spread_requests(const ReplayOptions& options,
                                                      const Workload& workload);

}  // namespace cachalot::replay
