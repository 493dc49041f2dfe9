// The arithmetic of a plan, the same on every device: which bytes of the engine's tensors are which
// bytes of a pool block. Plain data and functions of integers, so that a GPU kernel gets the plan
// by value in its arguments and runs this very code.
//
// A fragment is a run that is contiguous on both sides. Fragments are numbered in pool order; the
// number is taken apart into steps of up to four dimensions, with the part (keys or values) between
// those outside of it and those inside:
//
//   index = ((outer steps) * parts + part) * (inner steps) + inner step
#pragma once

#include <cstdint>

#include "base/host_device.h"

namespace cachalot::kv {

// Which way a copy goes: from the engine's pages into the pool, or back.
enum class Direction { kGather, kScatter };

inline constexpr std::uint32_t kMaxDimensions = 4;

struct PlanDimension {
  std::uint32_t count = 1;
  std::uint32_t tensor_step = 0;  // tensors from one step to the next: layers that are tensors
  // 0: no page depends on it. Else step / steps_per_page is the page, and the rest goes on inside:
  // 1 where the steps are pages, the tokens of a page where they are a block's tokens.
  std::uint32_t steps_per_page = 0;
};

struct PlanPart {
  std::uint64_t run_bytes = 0;
  std::uint64_t engine_offset = 0, pool_offset = 0;
  std::uint64_t page_stride = 0;
  std::uint64_t engine_stride[kMaxDimensions] = {};
  std::uint64_t pool_stride[kMaxDimensions] = {};
  std::uint32_t tensor = 0;
};

// 272 bytes. The tensors' base addresses are not in here but behind a pointer: there are as many as
// a model has layers, twice where K and V lie apart, and they never change.
struct Plan {
  std::uint32_t dimensions = 0;
  std::uint32_t outer_dimensions = 0;  // the first ones; the part varies faster than these
  std::uint32_t parts = 0;
  std::uint32_t token_dimension = kMaxDimensions;  // steps are a block's tokens; none: beyond all
  PlanDimension dimension[kMaxDimensions];
  PlanPart part[2];
};

struct Fragment {
  std::uint32_t tensor;
  std::uint32_t page;           // of the block: an index into its page ids
  std::uint64_t engine_offset;  // in the tensor; the page id's stride is still to be added
  std::uint64_t page_stride;
  std::uint64_t pool_offset;  // in the block
  std::uint64_t bytes;
};

// How many steps a dimension has, where `tokens` of a block's tokens were chosen (0: all).
CACHALOT_HOST_DEVICE inline std::uint32_t steps(const Plan& plan, std::uint32_t d,
                                                std::uint32_t tokens) {
  return d == plan.token_dimension && tokens != 0 ? tokens : plan.dimension[d].count;
}

CACHALOT_HOST_DEVICE inline std::uint64_t fragment_count(const Plan& plan,
                                                         std::uint32_t tokens = 0) {
  std::uint64_t count = plan.parts;
  for (std::uint32_t d = 0; d < plan.dimensions; ++d) count *= steps(plan, d, tokens);
  return count;
}

// Divides, and leaves the remainder where the number was. One division, of 32 bits: on a GPU it is some
// twenty dependent instructions, five times as many of 64 bits, and a compiler makes two of / and %.
CACHALOT_HOST_DEVICE inline std::uint32_t take_quotient(std::uint32_t& number, std::uint32_t by) {
  const std::uint32_t quotient = number / by;
  number -= quotient * by;
  return quotient;
}

// Goes `step` steps along a dimension.
CACHALOT_HOST_DEVICE inline void advance(const Plan& plan, std::uint32_t part, std::uint32_t d,
                                         std::uint32_t step, Fragment& fragment) {
  const PlanDimension& dimension = plan.dimension[d];
  const PlanPart& strides = plan.part[part];
  fragment.tensor += step * dimension.tensor_step;
  fragment.pool_offset += step * strides.pool_stride[d];
  if (dimension.steps_per_page == 0) {
    fragment.engine_offset += step * strides.engine_stride[d];
  } else {
    fragment.page = take_quotient(step, dimension.steps_per_page);
    fragment.engine_offset += step * strides.engine_stride[d];
  }
}

// @param index   below 2^32, as fragment_count() of every plan that is copied by number (fused/tables.h)
// @param chosen  the chosen tokens of the block, ascending, `tokens` of them; null: all
CACHALOT_HOST_DEVICE inline Fragment fragment(const Plan& plan, std::uint32_t index,
                                              const std::uint32_t* chosen = nullptr,
                                              std::uint32_t tokens = 0) {
  std::uint32_t step[kMaxDimensions] = {};
  for (std::uint32_t d = plan.dimensions; d-- > plan.outer_dimensions;) {
    const std::uint32_t rest = take_quotient(index, steps(plan, d, tokens));
    step[d] = index;
    index = rest;
  }
  const std::uint32_t outer = take_quotient(index, plan.parts);
  const std::uint32_t part = index;
  index = outer;
  for (std::uint32_t d = plan.outer_dimensions; d-- > 0;) {
    const std::uint32_t rest = take_quotient(index, steps(plan, d, tokens));
    step[d] = index;
    index = rest;
  }
  const PlanPart& strides = plan.part[part];
  Fragment out{strides.tensor,   0, strides.engine_offset, strides.page_stride, strides.pool_offset,
               strides.run_bytes};
  for (std::uint32_t d = 0; d < plan.dimensions; ++d) {
    const bool by_token = d == plan.token_dimension && chosen != nullptr;
    advance(plan, part, d, by_token ? chosen[step[d]] : step[d], out);
  }
  return out;
}

}  // namespace cachalot::kv
