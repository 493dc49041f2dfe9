// The public geometry (cachalot/geometry.h), under this module's name, and how presets become one.
#pragma once

#include <cachalot/geometry.h>

#include "geometry/presets.h"

namespace cachalot::geometry {

using cachalot::DType;
using cachalot::dtype_bytes;
using cachalot::dtype_name;
using cachalot::kParts;
using cachalot::KvGeometry;
using cachalot::parse_dtype;

// @errors as KvGeometry::of_model
Result<KvGeometry> from_preset(const ModelPreset& preset, DType dtype, std::uint32_t block_tokens,
                               std::uint32_t tp_rank = 0, std::uint32_t tp_size = 1);

}  // namespace cachalot::geometry
