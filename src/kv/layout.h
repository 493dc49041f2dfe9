// How an engine lays out its paged KV cache, as data: an order of dimensions, and which of them are
// cut into tensors of their own.
//
//   K  part: keys and values, or latent and rope      L  layer
//   B  page of the engine                             H  head (there is one in a latent)
//   N  token in its page                              C  content of one head, always contiguous
//
// `order` names the dimensions of one tensor, slowest first; `tensors` those that number the
// tensors, slowest first. FlashAttention's (2, pages, tokens, heads, head_dim), a tensor a layer,
// is order "KBNHC" and tensors "L"; with K and V packed in the last dimension it is "BNHKC".
//
// 1. `order` and `tensors` together name every dimension exactly once, "KLBHNC" or, for a latent,
//    "KLBNC"; C is the last of `order`, and B is in it.
// 2. A layout that is not described is refused: nothing looks at a shape and guesses.
#pragma once

#include <cachalot/result.h>

#include <span>
#include <string>
#include <string_view>

#include "geometry/presets.h"

namespace cachalot::kv {

using geometry::Attention;

// A layout for one kind of attention.
struct Form {
  const char* order = nullptr;  // null: engines do not use the layout for this attention
  const char* tensors = nullptr;
};

struct Layout {
  const char* name = nullptr;
  const char* where = nullptr;  // which engine, and the tensor's shape in its own words
  Form grouped;
  Form latent;
  const char* refusal = nullptr;  // why it cannot be copied block by block; null: it can

  const Form& form(Attention attention) const {
    return attention == Attention::kGrouped ? grouped : latent;
  }
};

std::span<const Layout> layouts();

// @errors kInvalidArgument: no such layout; the message lists those there are
//         kUnsupported: it is known, and cannot be used; the message says why
Result<const Layout*> find_layout(std::string_view name);

// Whether a form obeys rule 1: for forms that come from outside.
// @errors kInvalidArgument, kUnsupported: no form for this attention
Status check_form(const Form& form, Attention attention, const char* name);

}  // namespace cachalot::kv
