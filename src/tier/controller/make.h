// TieredCache::make() with a function that opens GPUs: tests pass one that opens fake GPUs.
#pragma once

#include <cachalot/tier.h>

#include "kv/cuda/gpus.h"

namespace cachalot::tier {

Result<TieredCache> make(const TieredCacheOptions& options, kv::Gpus::Open open_gpu);

}  // namespace cachalot::tier
