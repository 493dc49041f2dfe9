#include "geometry/presets.h"

#include <strings.h>

#include <string>

namespace cachalot::geometry {
namespace {

// As the models' published config.json files have them.
constexpr ModelPreset kPresets[] = {
    {"Llama-3-8B", Attention::kGrouped, 32, 8, 128, 0, 0},
    {"Llama-3-70B", Attention::kGrouped, 80, 8, 128, 0, 0},
    {"Qwen2.5-7B", Attention::kGrouped, 28, 4, 128, 0, 0},
    {"Qwen3-32B", Attention::kGrouped, 64, 8, 128, 0, 0},
    {"DeepSeek-V3", Attention::kLatent, 61, 0, 0, 512, 64},
    {"gpt-oss-120b", Attention::kGrouped, 36, 8, 64, 0, 0},
};

bool is_same_name(const char* known, std::string_view name) {
  return std::string_view(known).size() == name.size() &&
         strncasecmp(known, name.data(), name.size()) == 0;
}

}  // namespace

std::span<const ModelPreset> model_presets() {
  return kPresets;
}

Result<const ModelPreset*> find_preset(std::string_view name) {
  std::string known;
  for (const ModelPreset& preset : kPresets) {
    if (is_same_name(preset.name, name)) return &preset;
    known += known.empty() ? "" : ", ";
    known += preset.name;
  }
  const std::string shown(name.substr(0, 60));
  return Error::make(Code::kInvalidArgument, "model: %s is unknown, expected one of: %s",
                     shown.c_str(), known.c_str());
}

}  // namespace cachalot::geometry
