// Whether strides stay inside their tensors and keep elements apart: what EngineCache rests on.
#pragma once

#include "kv/engine_cache.h"

namespace cachalot::kv {

// Rules 1 and 2 of EngineCache, and that everything is aligned to the dtype.
// @errors kInvalidArgument: names the part, and the stride or tensor
Status check_bounds(const CacheShape& shape, const EngineStrides& strides,
                    std::span<const Tensor> tensors);

// That every tensor holds something: one that holds nothing is not copied, which its owner would not expect.
// @errors kInvalidArgument
Status check_tensors_used(const CacheShape& shape, const EngineStrides& strides);

// That every tensor ends where its last element does; with a page stride, up to a page later.
// @errors kInvalidArgument
Status check_exact_bytes(const CacheShape& shape, const EngineStrides& strides,
                         std::span<const Tensor> tensors, const char* layout);

}  // namespace cachalot::kv
