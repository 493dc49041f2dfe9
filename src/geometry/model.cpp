#include "geometry/model.h"

#include <charconv>
#include <iterator>
#include <vector>

namespace cachalot::geometry {
namespace {

struct Key {
  const char* name;
  std::uint32_t KvGeometry::*member;
};
constexpr Key kKeys[] = {{"layers", &KvGeometry::layers},
                         {"kv_heads", &KvGeometry::kv_heads},
                         {"head_dim", &KvGeometry::head_dim},
                         {"kv_lora_rank", &KvGeometry::kv_lora_rank},
                         {"qk_rope_head_dim", &KvGeometry::qk_rope_head_dim}};

const Key* find_key(std::string_view name) {
  for (const Key& key : kKeys) {
    if (name == key.name) return &key;
  }
  return nullptr;
}

std::string shown(std::string_view text) {
  return std::string(text.substr(0, 60));
}

std::vector<std::string_view> parts_of(std::string_view text) {
  std::vector<std::string_view> parts;
  for (std::size_t from = 0, comma = 0; comma != std::string_view::npos; from = comma + 1) {
    comma = text.find(',', from);
    parts.push_back(text.substr(from, comma - from));
  }
  return parts;
}

Status set_dtype(std::string_view value, KvGeometry& token) {
  CACHALOT_TRY_ASSIGN(token.dtype, parse_dtype(value));
  return {};
}

// "kv_heads=8"
Status set_field(std::string_view part, KvGeometry& token) {
  const std::size_t equals = part.find('=');
  const std::string_view name = part.substr(0, equals);
  const std::string_view value =
      equals == std::string_view::npos ? std::string_view() : part.substr(equals + 1);
  if (name == "dtype") return set_dtype(value, token);
  const Key* const key = find_key(name);
  if (key == nullptr || equals == std::string_view::npos) {
    return Error::make(Code::kInvalidArgument,
                       "model: \"%s\" is no dimension, expected KEY=VALUE with one of layers, "
                       "kv_heads, head_dim, kv_lora_rank, qk_rope_head_dim, dtype",
                       shown(part).c_str());
  }
  std::uint32_t number = 0;
  const char* const end = value.data() + value.size();
  const auto [stop, error] = std::from_chars(value.data(), end, number);
  if (error != std::errc() || stop != end) {
    return Error::make(Code::kInvalidArgument,
                       "model: %s is \"%s\", expected a whole number below 2^32", key->name,
                       shown(value).c_str());
  }
  token.*key->member = number;
  return {};
}

Status check_keys_differ(const std::vector<std::string_view>& parts) {
  for (std::size_t i = 0; i < parts.size(); ++i) {
    for (std::size_t j = 0; j < i; ++j) {
      const std::string_view name = parts[i].substr(0, parts[i].find('='));
      if (name != parts[j].substr(0, parts[j].find('='))) continue;
      return Error::make(Code::kInvalidArgument, "model: \"%s\" stands twice, expected it once",
                         shown(name).c_str());
    }
  }
  return {};
}

}  // namespace

Result<Model> parse_model(std::string_view text) {
  std::vector<std::string_view> parts = parts_of(text);
  CACHALOT_TRY(check_keys_differ(parts));
  Model model;
  model.name = text;
  model.token.block_tokens = 1;
  const bool is_named = parts.front().find('=') == std::string_view::npos;
  if (is_named) {
    CACHALOT_TRY_ASSIGN(const ModelPreset* const preset, find_preset(parts.front()));
    CACHALOT_TRY_ASSIGN(model.token, from_preset(*preset, DType::kBf16, 1));
    model.name = preset->name + std::string(text.substr(parts.front().size()));
    parts.erase(parts.begin());
  }
  for (const std::string_view part : parts) CACHALOT_TRY(set_field(part, model.token));
  if (!is_named && (model.token.kv_lora_rank != 0 || model.token.qk_rope_head_dim != 0))
    model.token.attention = Attention::kLatent;
  CACHALOT_TRY(model.token.check());
  return model;
}

std::string model_choices() {
  std::string choices;
  for (const ModelPreset& preset : model_presets()) choices += std::string(preset.name) + ", ";
  return choices +
         "or dimensions: layers=32,kv_heads=8,head_dim=128 or "
         "layers=61,kv_lora_rank=512,qk_rope_head_dim=64, each with dtype=f32, f16, bf16 "
         "(default), "
         "f8 or i8 if that differs; a name with dimensions changes them: Qwen3-32B,dtype=f8";
}

}  // namespace cachalot::geometry
