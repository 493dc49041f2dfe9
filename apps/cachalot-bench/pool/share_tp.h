// `bench share-tp`: what head groups cost (ClientOptions::share_tp), beside whole blocks of the same rank.
#pragma once

#include <cachalot/result.h>

#include "measure.h"

namespace cachalot::apps::bench {

Status bench_share_tp(const Settings& settings, Report& report);

}  // namespace cachalot::apps::bench
