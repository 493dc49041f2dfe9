// `bench sparse` and `bench layerwise`: some tokens of a block, and a block layer by layer.
#pragma once

#include <cachalot/result.h>

#include "measure.h"

namespace cachalot::apps::bench {

Status bench_sparse(const Settings& settings, Report& report);
Status bench_layerwise(const Settings& settings, Report& report);

}  // namespace cachalot::apps::bench
