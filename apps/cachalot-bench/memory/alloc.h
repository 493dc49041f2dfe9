// `bench alloc`: what an allocation of device memory costs the processor, beside the model of PyTorch's
// caching allocator. The driver is a model without work, so what it would take comes on top.
#pragma once

#include <cachalot/result.h>

#include "measure.h"

namespace cachalot::apps::bench {

Status bench_alloc(const Settings& settings, Report& report);

}  // namespace cachalot::apps::bench
