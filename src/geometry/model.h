// A model by its name, or by its dimensions, as one text: what --model takes everywhere.
//
//   Qwen3-32B
//   Qwen3-32B,dtype=f8
//   layers=32,kv_heads=8,head_dim=128,dtype=bf16
//   layers=61,kv_lora_rank=512,qk_rope_head_dim=64
#pragma once

#include <cachalot/result.h>

#include <cstdint>
#include <string>
#include <string_view>

#include "geometry/kv_geometry.h"

namespace cachalot::geometry {

struct Model {
  std::string
      name;  // the preset's spelling, then what was changed of it; or the dimensions as they were given
  KvGeometry token;  // the whole model on one rank, blocks of one token

  // Layers with a sliding window count in full: a block holds every layer.
  std::uint64_t kv_bytes_per_token() const { return token.token_bytes(); }
};

// The dimensions are those of KvGeometry; without a dtype it is bf16.
// @errors kInvalidArgument: an unknown name, key or dtype; a key twice; a number that is none; as KvGeometry::check()
Result<Model> parse_model(std::string_view text);

// What parse_model() takes, for help and for errors: every name, and how dimensions are written.
std::string model_choices();

}  // namespace cachalot::geometry
