// A copy plan: which fragments of an engine's cache make up a pool block, compiled once from a
// cache and a block order into arithmetic. There is no list of fragments.
//
//   CopyPlan plan = CopyPlan::compile(cache, default_block_order());
//   for (i < plan.fragments()) fragment(plan.arithmetic(), i)   // kv/fragment.h
//
// Dimensions that are contiguous on both sides are merged into the run, from the inside out; so are
// the two parts. What remains is at most four dimensions.
//
// 1. In the order of their numbers fragments cover the chosen part of [0, block_bytes()) of the
//    block from front to back, each byte once.
// 2. Pages are never merged, for their places are known only at run time, and neither are layers
//    that are tensors.
#pragma once

#include <cachalot/result.h>

#include <cstdint>

#include "kv/block_order.h"
#include "kv/engine_cache.h"
#include "kv/fragment.h"

namespace cachalot::kv {

// Layers [first, last) of the rank; 0 for last means all.
struct LayerRange {
  std::uint32_t first = 0, last = 0;
};

// How finely a plan must be able to choose: whole pages, single tokens (sparse copies), or single tokens of single
// heads of single layers (kv/row_plan.h). Of kRow only the parts are merged, and the dimensions are layer, token and
// head (not of a latent), in the order of the pool.
enum class Grain { kPage, kToken, kRow };

class CopyPlan {
 public:
  // @errors kInvalidArgument: layers that the geometry does not have
  // @cost   below a microsecond; no allocation
  static Result<CopyPlan> compile(const EngineCache& cache, const BlockOrder& order,
                                  LayerRange layers = {}, Grain grain = Grain::kPage);

  // Of blocks that no cache and no order describe (kv/fused/row_blocks.h).
  static CopyPlan of_blocks(const Plan& arithmetic, std::uint64_t block_bytes);

  const Plan& arithmetic() const { return plan_; }
  std::uint64_t fragments() const { return fragment_count(plan_); }  // of one block

  std::uint64_t block_bytes() const { return block_bytes_; }    // of all layers
  std::uint64_t copied_bytes() const { return copied_bytes_; }  // of the layers chosen, all tokens
  std::uint64_t padded_block_bytes() const { return (block_bytes_ + 63) / 64 * 64; }
  bool is_whole() const { return copied_bytes_ == block_bytes_; }

 private:
  CopyPlan() = default;

  Plan plan_;
  std::uint64_t block_bytes_ = 0, copied_bytes_ = 0;
};
static_assert(sizeof(Plan) <= 320);

}  // namespace cachalot::kv
