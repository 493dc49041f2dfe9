// `bench rpc`: what asking the keeper costs, beside bare signalling with the same primitives.
#pragma once

#include <cachalot/result.h>

#include "measure.h"

namespace cachalot::apps::bench {

Status bench_rpc(const Settings& settings, Report& report);

}  // namespace cachalot::apps::bench
