// `bench lookup`: what finding a prefix in the directory costs, beside reading as many lines.
#pragma once

#include <cachalot/result.h>

#include "measure.h"

namespace cachalot::apps::bench {

Status bench_lookup(const Settings& settings, Report& report);

}  // namespace cachalot::apps::bench
