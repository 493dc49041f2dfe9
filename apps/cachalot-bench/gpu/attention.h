// `bench attention`: a decode kernel over vTensor ranges, as they are, beside the same kernel over pages,
// and beside pages that are gathered first. Needs a GPU.
#pragma once

#include <cachalot/result.h>

#include "measure.h"

namespace cachalot::apps::bench {

// Results are compared number by number with those of the first way, and some with a computation in
// double on the host. @errors kCorrupt: a way has other results; the driver's
Status bench_attention(const Settings& settings, Report& report);

}  // namespace cachalot::apps::bench
