// What one token leaves behind in every layer, as plain numbers, and the three ways in which a request
// can lay it out in its addresses.
//
//   model        | layers | part_bytes    | token_bytes()
//   Llama-3-8B   | 32     | 2,048  2,048  | 131,072   keys, values: 8 heads of 128 numbers of 2 bytes
//   DeepSeek-V3  | 61     | 1,152         | 70,272    one latent of 576 numbers
#pragma once

#include <cachalot/result.h>

#include <cstdint>
#include <numeric>
#include <string_view>
#include <vector>

namespace cachalot::vtensor {

struct KvShape {
  std::uint64_t layers = 0;
  std::vector<std::uint64_t> part_bytes;  // of one token in one layer: keys and values, or a latent

  // Every part has bytes, and all of it is below 2^40; no more than 65,536 layers, since each may be a
  // plane of its own.
  Status check() const;

  // The sizes below are right after check().
  std::uint64_t layer_token_bytes() const {
    return std::accumulate(part_bytes.begin(), part_bytes.end(), std::uint64_t{0});
  }
  std::uint64_t token_bytes() const { return layers * layer_token_bytes(); }
};

// A plane holds the same thing of one token after the other: addresses without a gap.
enum class KvLayout : std::uint8_t {
  kPerLayer,  // a plane for each layer and part: many planes of narrow rows (vTensor's code)
  kFolded,    // one plane: all layers of a token, all parts of a layer, side by side
  // a plane for each part: all layers of a token side by side (vAttention's megacache)
  kFoldedParts,
};

// "per_layer", "folded", "folded_parts".
const char* kv_layout_name(KvLayout layout);
// @errors kInvalidArgument: no such layout; the message lists those there are
Result<KvLayout> parse_kv_layout(std::string_view name);

}  // namespace cachalot::vtensor
