// The KV dimensions of one rank of an engine. All sizes in bytes are computed from them.
//
//   bytes of a block = block_tokens * layers * elements of a layer * bytes of the dtype
//   elements of a layer = 2 * kv_heads * head_dim           (kGrouped: a part for K, one for V)
//                       = kv_lora_rank + qk_rope_head_dim   (kLatent: a part for each)
//
// 1. After check() no computed size exceeds 63 bits.
// 2. Sizes are never stored.
#pragma once

#include <cachalot/result.h>

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace cachalot {

enum class Attention {
  kGrouped,  // MHA, GQA, MQA: K and V of kv_heads * head_dim each
  kLatent,   // MLA: a latent of kv_lora_rank and a rope part of qk_rope_head_dim
};

enum class DType : std::uint32_t { kF32, kF16, kBf16, kF8, kI8 };

// Bytes of one number; 0 if `dtype` is not an enumerator.
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

// Ignores case.
// @errors kInvalidArgument: no such type; the message lists all types
Result<DType> parse_dtype(std::string_view name);

// A layer keeps two parts of a token: keys and values, or latent and rope.
inline constexpr std::uint32_t kParts = 2;

struct KvGeometry {
  // Of this rank only.
  std::uint32_t layers = 0;
  Attention attention = Attention::kGrouped;
  std::uint32_t kv_heads = 0;          // kGrouped; 0 otherwise
  std::uint32_t head_dim = 0;          // kGrouped; 0 otherwise
  std::uint32_t kv_lora_rank = 0;      // kLatent; 0 otherwise
  std::uint32_t qk_rope_head_dim = 0;  // kLatent (0: no rope part); 0 otherwise
  DType dtype = DType::kBf16;
  std::uint32_t block_tokens = 0;

  // Position of this rank in the model.
  std::uint32_t tp_rank = 0, tp_size = 1;
  std::uint32_t tp_replicas = 1;  // kGrouped: number of consecutive ranks with the same heads
  // Engines that divide the model's layers among their stages in different ways need different salts: a rank's first
  // layer is not known here.
  std::uint32_t pp_rank = 0, pp_size = 1;

  // The geometry of rank `tp_rank` of `tp_size` for a model of model_names(). Heads are split over the ranks;
  // if there are more ranks than heads, heads are replicated. A latent is replicated on every rank.
  // @errors kInvalidArgument: unknown model; heads can neither be split nor replicated evenly; as check()
  static Result<KvGeometry> of_model(std::string_view model, DType dtype,
                                     std::uint32_t block_tokens, std::uint32_t tp_rank = 0,
                                     std::uint32_t tp_size = 1);

  // @errors kInvalidArgument: a dimension is missing or belongs to the other attention; a rank is out of
  //         range; a size exceeds 63 bits
  Status check() const;

  // The sizes below are valid after check().
  std::uint32_t heads() const { return attention == Attention::kGrouped ? kv_heads : 1; }
  // What one head keeps of a token in this part; contiguous in every layout.
  std::uint64_t content_bytes(std::uint32_t part) const;
  std::uint64_t layer_token_bytes() const;  // one layer, one token, both parts
  std::uint64_t token_bytes() const { return layers * layer_token_bytes(); }
  std::uint64_t layer_bytes() const { return block_tokens * layer_token_bytes(); }  // of one block
  std::uint64_t block_bytes() const { return block_tokens * token_bytes(); }

  // One of `share_tp` equal groups of the whole model's KV heads: what a rank of tensor parallelism `share_tp` keeps.
  // Its tp_rank is the number of this rank's first group; this rank has heads() / its heads() of them.
  // @errors kInvalidArgument: share_tp does not divide the model's heads, or a group would lie on several ranks; a
  //         latent has one group
  Result<KvGeometry> head_group(std::uint32_t share_tp) const;
  // Whether this is the first of the ranks that hold the same bytes: it is enough that this one stores them.
  bool is_first_replica() const {
    return attention == Attention::kGrouped ? tp_rank % tp_replicas == 0 : tp_rank == 0;
  }

  // Text for the namespace: equal for ranks that hold the same bytes, different for all others.
  // @param share_tp  not 0: of head groups instead, so equal for all ranks that share them
  std::string fingerprint(std::uint32_t share_tp = 0) const;

  bool operator==(const KvGeometry&) const = default;
};

// Tokens [first, last) of a block.
struct TokenRange {
  std::uint32_t first = 0, last = 0;
};

// Where the tokens go that the KV heads have chosen, in the pages that a call is given.
enum class TokenPlace {
  kOwn,  // token t of the prompt: where the whole prompt would have it
  kPacked,  // token i of a head's list: where a prompt would have its token i, so each head's rows lie together
};

// Names that of_model() accepts.
std::vector<std::string> model_names();

}  // namespace cachalot
