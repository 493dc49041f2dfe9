// `bench hash`: what checksums and block hashes cost.
#pragma once

#include <cachalot/result.h>

#include "measure.h"

namespace cachalot::apps::bench {

Status bench_hash_functions(const Settings& settings, Report& report);

}  // namespace cachalot::apps::bench
