// `bench put` and `bench get`: whole blocks with all their metadata, beside the best plain copy of
// the same bytes between the same places.
#pragma once

#include <cachalot/result.h>

#include "measure.h"

namespace cachalot::apps::bench {

Status bench_put(const Settings& settings, Report& report);
Status bench_get(const Settings& settings, Report& report);

}  // namespace cachalot::apps::bench
