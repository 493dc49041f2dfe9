// What one rank of one engine keeps of a block of tokens: the dimensions from which every size in
// bytes is computed.
//
//   bytes of a block = block_tokens * layers * elements of a layer * bytes of the dtype
//   elements of a layer = 2 * kv_heads * head_dim           (kGrouped: a part for K, one for V)
//                       = kv_lora_rank + qk_rope_head_dim   (kLatent: a part for each)
//
// 1. After check() no size computed from it overflows 63 bits.
// 2. A size is stored nowhere.
#pragma once

#include <cachalot/result.h>

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace cachalot {

enum class Attention {
  kGrouped,  // K and V of kv_heads * head_dim each (MHA, GQA and MQA alike)
  kLatent,   // MLA: one latent of kv_lora_rank and one rope part of qk_rope_head_dim
};

// The type of one number in a KV cache.
enum class DType : std::uint32_t { kF32, kF16, kBf16, kF8, kI8 };

// Bytes of one number; 0 for a value that is none of the enumerators.
constexpr std::uint64_t dtype_bytes(DType dtype) {
  switch (dtype) {
    case DType::kF32:
      return 4;
    case DType::kF16:
    case DType::kBf16:
      return 2;
    case DType::kF8:
    case DType::kI8:
      return 1;
  }
  return 0;
}

// "f32", "f16", "bf16", "f8", "i8".
const char* dtype_name(DType dtype);

// Upper and lower case are the same.
// @errors kInvalidArgument: no such type; the message lists those there are
Result<DType> parse_dtype(std::string_view name);

// What a layer keeps of a token is in two parts: keys and values, or latent and rope.
inline constexpr std::uint32_t kParts = 2;

struct KvGeometry {
  // Of this rank alone.
  std::uint32_t layers = 0;
  Attention attention = Attention::kGrouped;
  std::uint32_t kv_heads = 0;          // kGrouped; 0 otherwise
  std::uint32_t head_dim = 0;          // kGrouped; 0 otherwise
  std::uint32_t kv_lora_rank = 0;      // kLatent; 0 otherwise
  std::uint32_t qk_rope_head_dim = 0;  // kLatent; 0 otherwise (0 there too: no rope part)
  DType dtype = DType::kBf16;
  std::uint32_t block_tokens = 0;

  // Which part of the model this is.
  std::uint32_t tp_rank = 0, tp_size = 1;
  std::uint32_t tp_replicas = 1;  // kGrouped: so many ranks in a row hold the same heads
  std::uint32_t pp_rank = 0, pp_size = 1;

  // The rank `tp_rank` of `tp_size` of a model of model_names(). Heads are split over the ranks; where there are more
  // ranks than heads, each is replicated; a latent is replicated on every rank.
  // @errors kInvalidArgument: the model is unknown; heads can neither be split nor replicated evenly; as check()
  static Result<KvGeometry> of_model(std::string_view model, DType dtype,
                                     std::uint32_t block_tokens, std::uint32_t tp_rank = 0,
                                     std::uint32_t tp_size = 1);

  // @errors kInvalidArgument: a dimension that is missing, or belongs to the other attention; a rank
  //         out of range; sizes that do not fit 63 bits
  Status check() const;

  // The sizes below are right after check().
  std::uint32_t heads() const { return attention == Attention::kGrouped ? kv_heads : 1; }
  // What one head keeps of a token in this part: the content that is contiguous in every layout.
  std::uint64_t content_bytes(std::uint32_t part) const;
  std::uint64_t layer_token_bytes() const;  // one layer, one token, both parts
  std::uint64_t token_bytes() const { return layers * layer_token_bytes(); }
  std::uint64_t layer_bytes() const { return block_tokens * layer_token_bytes(); }  // of one block
  std::uint64_t block_bytes() const { return block_tokens * token_bytes(); }

  // All that the bytes of a block depend on in here, as text: ranks that hold the same bytes have
  // the same, others never do. For the namespace of the blocks.
  std::string fingerprint() const;

  bool operator==(const KvGeometry&) const = default;
};

// Tokens [first, last) of a block.
struct TokenRange {
  std::uint32_t first = 0, last = 0;
};

// Models whose dimensions are known.
std::vector<std::string> model_names();

}  // namespace cachalot
