#include "model_config.h"

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>
#include <vector>

namespace cachalot::apps {
namespace {

using nlohmann::json;

constexpr std::size_t kMostBytes = std::size_t{16} << 20;
constexpr std::uint32_t kMostLayers = 10'000;
const std::string kFull = "full_attention";

Result<json> read_json(const std::string& file) {
  std::ifstream input(file, std::ios::binary);
  if (!input) return Error::from_errno(errno, "%.200s: opening", file.c_str());
  std::string text(kMostBytes + 1, '\0');
  input.read(text.data(), static_cast<std::streamsize>(text.size()));
  text.resize(static_cast<std::size_t>(input.gcount()));
  json config = json::parse(text, nullptr, false);
  if (config.is_object() && text.size() <= kMostBytes) return config;
  return Error::make(Code::kBadInput,
                     "%.200s: is no JSON object of at most 16 MiB, expected a model's config.json",
                     file.c_str());
}

std::optional<std::uint32_t> find_number(const json& config, const char* name) {
  const auto found = config.find(name);
  if (found == config.end() || !found->is_number_unsigned()) return {};
  const auto number = found->get<std::uint64_t>();
  if (number > 0xffffffff) return {};
  return static_cast<std::uint32_t>(number);
}

// A number that is there, and is none or too large. Many models have null for what others say.
Status check_numbers(const json& config, const std::string& file) {
  for (const char* name : {"num_hidden_layers", "num_attention_heads", "num_key_value_heads",
                           "hidden_size", "head_dim", "kv_lora_rank", "qk_rope_head_dim"}) {
    const auto found = config.find(name);
    if (found == config.end() || found->is_null() || find_number(config, name)) continue;
    return Error::make(Code::kBadInput, "%.160s: %s is %.40s, expected a whole number below 2^32",
                       file.c_str(), name, found->dump().c_str());
  }
  return {};
}

// Some models say each layer's kind, others how often a layer without a window comes, others nothing but their type.
// Empty: all layers are of one kind.
std::vector<std::string> kinds_of_layers(const json& config, std::uint32_t layers) {
  std::vector<std::string> kinds;
  if (const auto types = config.find("layer_types"); types != config.end() && types->is_array()) {
    for (const json& type : *types)
      kinds.push_back(type.is_string() ? type.get<std::string>() : type.dump());
    return kinds;
  }
  static const std::map<std::string, std::uint32_t> kPeriods = {
      {"gemma2", 2}, {"gemma3", 6}, {"gemma3_text", 6}, {"cohere2", 4}, {"llama4_text", 4}};
  std::uint32_t period = find_number(config, "sliding_window_pattern").value_or(0);
  if (const auto type = config.find("model_type");
      period == 0 && type != config.end() && type->is_string()) {
    const auto known = kPeriods.find(type->get<std::string>());
    if (known != kPeriods.end()) period = known->second;
  }
  if (period < 2 || layers > kMostLayers) return kinds;
  for (std::uint32_t layer = 1; layer <= layers; ++layer)
    kinds.push_back(layer % period == 0 ? kFull : "sliding_attention");
  return kinds;
}

// What a layer keeps beside keys and values of each token, or instead of them; empty: nothing that is known here.
std::string other_layer(const json& config, const std::vector<std::string>& kinds) {
  for (const std::string& kind : kinds) {
    if (kind != kFull && kind != "sliding_attention" && kind != "chunked_attention")
      return "layers of " + kind;
  }
  // State layers between those of attention; an indexer's keys; layers that read those of an earlier one.
  for (const char* name :
       {"full_attention_interval", "attn_layer_period", "attn_layer_indices", "attn_type_list",
        "layers_block_type", "hybrid_override_pattern", "linear_attn_config", "mamba_d_ssm",
        "mamba_d_state", "state_size", "index_head_dim", "num_kv_shared_layers"}) {
    const auto found = config.find(name);
    if (found == config.end() || found->is_null() || *found == 0) continue;
    // attn_type_list: 1 is a layer of attention.
    const auto is_one = [](const json& kind) { return kind == 1; };
    if (found->is_array() && std::ranges::all_of(*found, is_one)) continue;
    return name;
  }
  return "";
}

// As vLLM makes groups: of as many layers as the rarer kind has, unless the kinds are about as many.
std::uint32_t layers_of_a_block(const std::vector<std::string>& kinds, std::uint32_t layers) {
  const auto full = static_cast<std::uint32_t>(std::ranges::count(kinds, kFull));
  const auto others = static_cast<std::uint32_t>(kinds.size()) - full;
  const auto [fewer, more] = std::minmax(full, others);
  if (more == 0) return layers;
  return fewer == 0 || more < 1.25 * fewer ? more : fewer;
}

}  // namespace

bool is_model_path(const std::string& text) {
  return text.find('/') != std::string::npos || text.ends_with(".json");
}

Result<std::string> read_model_config(const std::string& path, LayersOf which) {
  std::error_code ignored;
  const std::string file =
      std::filesystem::is_directory(path, ignored) ? path + "/config.json" : path;
  CACHALOT_TRY_ASSIGN(const json whole, read_json(file));
  // Of a model that also takes images.
  const auto text = whole.find("text_config");
  const json& config = text != whole.end() && text->is_object() ? *text : whole;
  CACHALOT_TRY(check_numbers(config, file));
  const auto of_config = [&](const char* name) { return find_number(config, name); };
  auto layers = of_config("num_hidden_layers");
  const std::vector<std::string> kinds = kinds_of_layers(config, layers.value_or(0));
  if (const std::string other = other_layer(config, kinds); !other.empty()) {
    return Error::make(
        Code::kUnsupported,
        "%.160s: has %.60s: the engine alone can size its blocks; start it once, its "
        "log says how many bytes a block has",
        file.c_str(), other.c_str());
  }
  if (layers && which == LayersOf::kBlock) layers = layers_of_a_block(kinds, *layers);
  // Engines take a float32 model in 16 bits unless they are told otherwise.
  const std::string end = ",dtype=bf16";
  const std::string begin = layers ? "layers=" + std::to_string(*layers) : "";
  const auto rank = of_config("kv_lora_rank"), rope = of_config("qk_rope_head_dim");
  if (layers && rank && rope) {
    return begin + ",kv_lora_rank=" + std::to_string(*rank) +
           ",qk_rope_head_dim=" + std::to_string(*rope) + end;
  }
  const auto heads = of_config("num_attention_heads"), width = of_config("hidden_size");
  auto kv_heads = of_config("num_key_value_heads"), head_dim = of_config("head_dim");
  if (!kv_heads) kv_heads = heads;
  if (!head_dim && heads && width && *heads != 0) head_dim = *width / *heads;
  if (layers && kv_heads && head_dim) {
    return begin + ",kv_heads=" + std::to_string(*kv_heads) +
           ",head_dim=" + std::to_string(*head_dim) + end;
  }
  return Error::make(Code::kBadInput,
                     "%.200s: expected num_hidden_layers, and num_key_value_heads and head_dim, or "
                     "kv_lora_rank and qk_rope_head_dim",
                     file.c_str());
}

}  // namespace cachalot::apps
