// `bench storage`: reads of the `file` storage, beside fio's reads of as large a file in the same directory.
#pragma once

#include <cachalot/result.h>

#include "measure.h"

namespace cachalot::apps::bench {

Status bench_storage(const Settings& settings, Report& report);

}  // namespace cachalot::apps::bench
