// How long it takes to page-lock a pool for a GPU, by what its memory is made of.
#pragma once

#include <cachalot/result.h>

#include "kv/cuda/cuda_device.h"
#include "measure.h"

namespace cachalot::apps::bench {

// Rows "register/memfd", "register/tmpfs" and both "…/small_pages": ms a GiB, beside the driver's own
// page-locked memory. A kind that cannot be made or registered is a note.
// @errors the driver's
Status measure_registration(const Settings& settings, kv::CudaDevice& device, Report& report);

}  // namespace cachalot::apps::bench
