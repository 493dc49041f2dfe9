// Why prompts may have missed, as gauges that are 1 or 0.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "node/metrics/exposition.h"

namespace cachalot::node {

// Each cause that is known, and whether it is there.
using MissCauses = std::vector<std::pair<std::string, bool>>;

void write_miss_metrics(Exposition& exposition, const MissCauses& causes);

}  // namespace cachalot::node
