// `bench takeover`: how long no client can store after a keeper has died.
#pragma once

#include <cachalot/result.h>

#include "measure.h"

namespace cachalot::apps::bench {

Status bench_takeover(const Settings& settings, Report& report);

}  // namespace cachalot::apps::bench
