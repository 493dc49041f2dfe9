// `bench vmm`: what it costs to make 2 GiB out of pieces, on CPU memory and as published of GPUs.
#pragma once

#include <cachalot/result.h>

#include "measure.h"

namespace cachalot::apps::bench {

Status bench_vmm(const Settings& settings, Report& report);

}  // namespace cachalot::apps::bench
