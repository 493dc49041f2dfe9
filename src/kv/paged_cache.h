// From the public description of an engine's paged cache to the checked one.
#pragma once

#include <cachalot/client.h>
#include <cachalot/result.h>

#include <vector>

#include "kv/engine_cache.h"

namespace cachalot::kv {

// The tensors of the description.
std::vector<Tensor> tensors_of(const PagedCache& description);

// @errors kInvalidArgument: not exactly one of layout and strides; as EngineCache::make and with_strides
Result<EngineCache> engine_cache_of(const PagedCache& description, const KvGeometry& geometry);

}  // namespace cachalot::kv
