#include "transfer/handover/instance.h"

#include <numeric>

#include "transfer/handover/messages.h"

namespace cachalot::transfer {
namespace {

std::uint32_t model_heads(const KvGeometry& own) {
  return own.attention == Attention::kGrouped ? own.kv_heads * (own.tp_size / own.tp_replicas) : 1;
}

Result<std::uint32_t> model_layers(const KvGeometry& own, const InstanceShape& shape) {
  if (shape.stage_layers.empty()) return own.layers * shape.pp_size;
  std::uint64_t sum = 0;
  for (const std::uint32_t layers : shape.stage_layers) sum += layers;
  if (sum == 0 || sum > 100'000) {
    return Error::make(Code::kInvalidArgument, "an instance of %llu layers",
                       static_cast<unsigned long long>(sum));
  }
  return static_cast<std::uint32_t>(sum);
}

}  // namespace

Result<std::vector<Rank>> ranks_of(const KvGeometry& own, const InstanceShape& own_shape,
                                   const InstanceShape& shape) {
  CACHALOT_TRY(own.check());
  CACHALOT_TRY(check(own_shape));
  CACHALOT_TRY(check(shape));
  CACHALOT_TRY_ASSIGN(const std::uint32_t layers, model_layers(own, own_shape));
  CACHALOT_TRY_ASSIGN(const std::uint32_t given, shape.stage_layers.empty()
                                                     ? Result<std::uint32_t>(layers)
                                                     : model_layers(own, shape));
  if (given != layers || (shape.stage_layers.empty() && layers % shape.pp_size != 0)) {
    return Error::make(Code::kInvalidArgument,
                       "%u pipeline stages of %u layers in all; expected the model's %u layers",
                       shape.pp_size, given, layers);
  }
  const std::uint32_t heads = model_heads(own), tp = shape.tp_size;
  const bool is_grouped = own.attention == Attention::kGrouped;
  if (is_grouped && heads % tp != 0 && tp % heads != 0) {
    return Error::make(Code::kInvalidArgument, "%u KV heads on %u ranks: neither divides the other",
                       heads, tp);
  }
  std::vector<Rank> ranks;
  std::uint32_t first = 0;
  for (std::uint32_t stage = 0; stage < shape.pp_size; ++stage) {
    const std::uint32_t count =
        shape.stage_layers.empty() ? layers / shape.pp_size : shape.stage_layers[stage];
    for (std::uint32_t r = 0; r < tp; ++r) {
      Rank rank;
      rank.geometry = own;
      rank.geometry.layers = count;
      rank.geometry.tp_rank = r;
      rank.geometry.tp_size = tp;
      rank.geometry.pp_rank = stage;
      rank.geometry.pp_size = shape.pp_size;
      if (is_grouped) {
        rank.geometry.kv_heads = tp <= heads ? heads / tp : 1;
        rank.geometry.tp_replicas = tp <= heads ? 1 : tp / heads;
      }
      rank.layers = {first, first + count};
      if (!shape.machines.empty()) rank.machine = shape.machines[ranks.size()];
      ranks.push_back(rank);
    }
    first += count;
  }
  return ranks;
}

Result<std::string> model_text(const KvGeometry& own, const InstanceShape& own_shape) {
  CACHALOT_TRY_ASSIGN(const std::uint32_t layers, model_layers(own, own_shape));
  std::string text = "layers=" + std::to_string(layers) + " dtype=" + dtype_name(own.dtype);
  if (own.attention == Attention::kGrouped) {
    return text + " heads=" + std::to_string(model_heads(own)) +
           " head_dim=" + std::to_string(own.head_dim);
  }
  return text + " latent=" + std::to_string(own.kv_lora_rank) +
         " rope=" + std::to_string(own.qk_rope_head_dim);
}

std::string division_text(const std::vector<Rank>& ranks) {
  const std::uint32_t tp = ranks.front().geometry.tp_size;
  std::string text = "TP " + std::to_string(tp) + ", PP " + std::to_string(ranks.size() / tp);
  for (std::size_t i = 0; i < ranks.size(); i += tp)
    text += (i == 0 ? ", layers " : "+") + std::to_string(ranks[i].geometry.layers);
  return text;
}

std::string rank_name(const std::string& instance, std::uint32_t rank) {
  return instance + "/" + std::to_string(rank);
}

}  // namespace cachalot::transfer
