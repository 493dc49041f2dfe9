// The part of `bench vmm` that needs a GPU: what each call of the driver costs, beside what was
// published, and 2 GiB in pieces beside 2 GiB at once.
#pragma once

#include <cachalot/result.h>

#include "measure.h"

namespace cachalot::apps::bench {

// Without a GPU: a note, and no row.
Status bench_vmm_cuda(const Settings& settings, Report& report);

}  // namespace cachalot::apps::bench
