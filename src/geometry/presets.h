// Published dimensions of well-known models: how many bytes of KV cache a token takes.
#pragma once

#include <cachalot/geometry.h>
#include <cachalot/result.h>

#include <cstdint>
#include <span>
#include <string_view>

namespace cachalot::geometry {

using cachalot::Attention;

struct ModelPreset {
  const char* name;
  Attention attention;
  std::uint32_t layers;
  std::uint32_t kv_heads;          // kGrouped
  std::uint32_t head_dim;          // kGrouped
  std::uint32_t kv_lora_rank;      // kLatent
  std::uint32_t qk_rope_head_dim;  // kLatent

  // Numbers, not bytes, that a layer keeps of one token.
  constexpr std::uint64_t kv_elements_per_layer() const {
    return attention == Attention::kGrouped ? std::uint64_t{2} * kv_heads * head_dim
                                            : std::uint64_t{kv_lora_rank} + qk_rope_head_dim;
  }
  // All layers, one rank, two bytes an element (bf16). Layers with a sliding window count in full:
  // that is what a block which holds every layer takes.
  constexpr std::uint64_t kv_bytes_per_token() const {
    return layers * kv_elements_per_layer() * 2;
  }
};

std::span<const ModelPreset> model_presets();

// Upper and lower case are the same, hyphens do not matter, and "meta-llama/Meta-" before a name and "-Instruct" after it
// may stand there.
// @errors kInvalidArgument: no such model; the message has the names that begin most like it
Result<const ModelPreset*> find_preset(std::string_view name);

}  // namespace cachalot::geometry
