// In which order a block lies in the pool, where it is contiguous: the same dimensions as a
// layout's (kv/layout.h) without pages, slowest first.
//
// All engines of a namespace must use the same order; its name is part of the block's fingerprint.
// Copies are fastest where the order's end is that of the engine's layout, because a fragment is
// what is contiguous on both sides.
#pragma once

#include <cachalot/result.h>

#include <span>
#include <string>
#include <string_view>

#include "geometry/kv_geometry.h"

namespace cachalot::kv {

struct BlockOrder {
  const char* name;
  const char* grouped;  // of "KLHNC"
  const char* latent;   // of "KLNC"

  const char* order(geometry::Attention attention) const {
    return attention == geometry::Attention::kGrouped ? grouped : latent;
  }
};

std::span<const BlockOrder> block_orders();
const BlockOrder& default_block_order();  // layer_first

// @errors kInvalidArgument: no such order; the message lists those there are
Result<const BlockOrder*> find_block_order(std::string_view name);

}  // namespace cachalot::kv
