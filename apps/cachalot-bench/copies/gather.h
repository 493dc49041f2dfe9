// `bench gather` and `bench scatter`: blocks between an engine's pages and the pool, beside the
// best plain copy of the same fragments between the same places.
#pragma once

#include <cachalot/result.h>

#include "measure.h"

namespace cachalot::apps::bench {

Status bench_gather(const Settings& settings, Report& report);
Status bench_scatter(const Settings& settings, Report& report);

}  // namespace cachalot::apps::bench
