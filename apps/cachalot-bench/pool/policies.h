// `bench policies`: how fast each eviction policy looks blocks up and stores them, without a pool.
#pragma once

#include <cachalot/result.h>

#include "measure.h"

namespace cachalot::apps::bench {

Status bench_policies(const Settings& settings, Report& report);

}  // namespace cachalot::apps::bench
