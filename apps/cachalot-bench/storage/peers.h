#pragma once

#include <cachalot/result.h>

#include "measure.h"
#include "report.h"

namespace cachalot::apps::bench {

// Blocks out of the pool of another host, beside a bare exchange over TCP of as many bytes.
Status bench_peers(const Settings& settings, Report& report);

}  // namespace cachalot::apps::bench
