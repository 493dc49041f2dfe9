#include "geometry/kv_geometry.h"

#include <cinttypes>

namespace cachalot {
namespace {

Error wrong(const char* what, std::uint64_t value, const char* expected) {
  return Error::make(Code::kInvalidArgument, "geometry: %s is %" PRIu64 ", expected %s", what,
                     value, expected);
}

Status check_dimensions(const KvGeometry& g) {
  if (g.layers == 0) return wrong("layers", 0, "at least 1");
  if (g.block_tokens == 0) return wrong("block_tokens", 0, "at least 1");
  if (dtype_bytes(g.dtype) == 0) {
    return wrong("dtype", static_cast<std::uint32_t>(g.dtype), "f32, f16, bf16, f8 or i8");
  }
  if (g.attention == Attention::kGrouped) {
    if (g.kv_heads == 0) return wrong("kv_heads", 0, "at least 1 (attention is grouped)");
    if (g.head_dim == 0) return wrong("head_dim", 0, "at least 1 (attention is grouped)");
    if (g.kv_lora_rank != 0) return wrong("kv_lora_rank", g.kv_lora_rank, "0 (no latent here)");
    if (g.qk_rope_head_dim != 0) {
      return wrong("qk_rope_head_dim", g.qk_rope_head_dim, "0 (no latent here)");
    }
    return {};
  }
  if (g.attention != Attention::kLatent) {
    return wrong("attention", static_cast<std::uint64_t>(g.attention), "grouped or latent");
  }
  if (g.kv_lora_rank == 0) return wrong("kv_lora_rank", 0, "at least 1 (attention is latent)");
  if (g.kv_heads != 0) return wrong("kv_heads", g.kv_heads, "0 (a latent has no heads)");
  if (g.head_dim != 0) return wrong("head_dim", g.head_dim, "0 (a latent has no heads)");
  return {};
}

Status check_ranks(const KvGeometry& g) {
  if (g.tp_rank >= g.tp_size) return wrong("tp_rank", g.tp_rank, "less than tp_size");
  if (g.pp_rank >= g.pp_size) return wrong("pp_rank", g.pp_rank, "less than pp_size");
  if (g.tp_replicas == 0 || g.tp_size % g.tp_replicas != 0) {
    return wrong("tp_replicas", g.tp_replicas, "a divisor of tp_size");
  }
  return {};
}

// Of the parts into which ranks divide the heads, and this rank's part. A latent is whole on every rank.
std::uint32_t shards_of(const KvGeometry& g) {
  return g.attention == Attention::kGrouped ? g.tp_size / g.tp_replicas : 1;
}
std::uint32_t shard_of(const KvGeometry& g) {
  return g.attention == Attention::kGrouped ? g.tp_rank / g.tp_replicas : 0;
}

// False where the product does not fit 63 bits.
bool multiply(std::uint64_t& product, std::uint64_t factor) {
  return !__builtin_mul_overflow(product, factor, &product) && product >> 63 == 0;
}

}  // namespace

Status KvGeometry::check() const {
  CACHALOT_TRY(check_dimensions(*this));
  CACHALOT_TRY(check_ranks(*this));
  // Elements of 32-bit dimensions: at most 2 * 2^64, so multiplied with care from the start.
  std::uint64_t bytes = attention == Attention::kGrouped
                            ? std::uint64_t{kv_heads}
                            : std::uint64_t{kv_lora_rank} + qk_rope_head_dim;
  const std::uint64_t factors[] = {
      attention == Attention::kGrouped ? std::uint64_t{2} * head_dim : 1, dtype_bytes(dtype),
      layers, block_tokens};
  for (const std::uint64_t factor : factors) {
    if (!multiply(bytes, factor)) {
      return Error::make(Code::kInvalidArgument,
                         "geometry: a block of %u tokens in %u layers exceeds 2^63 bytes",
                         block_tokens, layers);
    }
  }
  return {};
}

std::uint64_t KvGeometry::content_bytes(std::uint32_t part) const {
  if (attention == Attention::kGrouped) return head_dim * dtype_bytes(dtype);
  return (part == 0 ? kv_lora_rank : qk_rope_head_dim) * dtype_bytes(dtype);
}

std::uint64_t KvGeometry::layer_token_bytes() const {
  return heads() * (content_bytes(0) + content_bytes(1));
}

Result<KvGeometry> KvGeometry::of_model(std::string_view model, DType dtype,
                                        std::uint32_t block_tokens, std::uint32_t tp_rank,
                                        std::uint32_t tp_size) {
  CACHALOT_TRY_ASSIGN(const geometry::ModelPreset* const preset, geometry::find_preset(model));
  return geometry::from_preset(*preset, dtype, block_tokens, tp_rank, tp_size);
}

std::vector<std::string> model_names() {
  std::vector<std::string> names;
  for (const geometry::ModelPreset& preset : geometry::model_presets())
    names.emplace_back(preset.name);
  return names;
}

Result<KvGeometry> KvGeometry::head_group(std::uint32_t share_tp) const {
  CACHALOT_TRY(check());
  const std::uint32_t shards = shards_of(*this);
  const std::uint64_t model_heads = std::uint64_t{heads()} * shards;
  if (share_tp == 0 || model_heads % share_tp != 0) {
    return Error::make(Code::kInvalidArgument,
                       "share_tp: is %u, expected a divisor of the %" PRIu64
                       " KV heads that all ranks have together (a latent counts as one)",
                       share_tp, model_heads);
  }
  if (share_tp % shards != 0) {
    return Error::make(
        Code::kInvalidArgument,
        "share_tp: is %u, expected a multiple of %u, because a group of heads lies on "
        "one rank, and so many ranks have different heads",
        share_tp, shards);
  }
  KvGeometry group = *this;
  if (attention == Attention::kGrouped)
    group.kv_heads = static_cast<std::uint32_t>(model_heads / share_tp);
  group.tp_rank = shard_of(*this) * (share_tp / shards);
  group.tp_size = share_tp;
  group.tp_replicas = 1;
  return group;
}

std::string KvGeometry::fingerprint(std::uint32_t share_tp) const {
  std::string text = "kv1 layers=" + std::to_string(layers);
  if (attention == Attention::kLatent) {
    // The same on every rank, so no rank is named.
    text += " latent=" + std::to_string(kv_lora_rank) + " rope=" + std::to_string(qk_rope_head_dim);
  } else {
    const std::uint64_t model_heads = std::uint64_t{kv_heads} * shards_of(*this);
    const std::string rank =
        std::to_string(shard_of(*this)) + "/" + std::to_string(shards_of(*this));
    text += " heads=" + std::to_string(share_tp != 0 ? model_heads : kv_heads) +
            " head_dim=" + std::to_string(head_dim) +
            " shard=" + (share_tp != 0 ? "any/" + std::to_string(share_tp) : rank);
  }
  return text + " stage=" + std::to_string(pp_rank) + "/" + std::to_string(pp_size) +
         " dtype=" + dtype_name(dtype) + " block_tokens=" + std::to_string(block_tokens);
}

}  // namespace cachalot

namespace cachalot::geometry {

Result<KvGeometry> from_preset(const ModelPreset& preset, DType dtype, std::uint32_t block_tokens,
                               std::uint32_t tp_rank, std::uint32_t tp_size) {
  KvGeometry g;
  g.layers = preset.layers;
  g.attention = preset.attention;
  g.kv_heads = preset.kv_heads;
  g.head_dim = preset.head_dim;
  g.kv_lora_rank = preset.kv_lora_rank;
  g.qk_rope_head_dim = preset.qk_rope_head_dim;
  g.dtype = dtype;
  g.block_tokens = block_tokens;
  g.tp_rank = tp_rank;
  g.tp_size = tp_size;
  if (tp_size == 0) return wrong("tp_size", 0, "at least 1");
  if (preset.attention == Attention::kGrouped) {
    const bool split = preset.kv_heads % tp_size == 0;
    if (!split && (preset.kv_heads == 0 || tp_size % preset.kv_heads != 0)) {
      return Error::make(Code::kInvalidArgument,
                         "geometry: tp_size is %u, expected a divisor or a multiple of the %u KV "
                         "heads of %s",
                         tp_size, preset.kv_heads, preset.name);
    }
    g.kv_heads = split ? preset.kv_heads / tp_size : 1;
    g.tp_replicas = split ? 1 : tp_size / preset.kv_heads;
  }
  CACHALOT_TRY(g.check());
  return g;
}

}  // namespace cachalot::geometry
