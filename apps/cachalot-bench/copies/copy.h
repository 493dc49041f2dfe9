// `bench copy`: a domain's bulk copies, with and without the checksum, beside the best plain ones.
#pragma once

#include <cachalot/result.h>

#include "measure.h"

namespace cachalot::apps::bench {

Status bench_copy(const Settings& settings, Report& report);

}  // namespace cachalot::apps::bench
