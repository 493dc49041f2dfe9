// `bench vtensor`: what contiguous KV costs to grow, to share and to read.
#pragma once

#include <cachalot/result.h>

#include "measure.h"

namespace cachalot::apps::bench {

Status bench_vtensor(const Settings& settings, Report& report);

// Reading one layer's keys, its rows side by side or strided: kv_locality.cpp.
Status bench_kv_locality(const Settings& settings, Report& report);

}  // namespace cachalot::apps::bench
