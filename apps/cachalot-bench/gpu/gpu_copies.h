// `bench cuda`: a GPU's copies between its pages and the pool, beside what others do with the same
// fragments and beside one flat copy of as many bytes. Where there is no GPU, it says so in a line.
#pragma once

#include <cachalot/result.h>

#include "measure.h"

namespace cachalot::apps::bench {

Status bench_cuda(const Settings& settings, Report& report);

}  // namespace cachalot::apps::bench
