#include "geometry/presets.h"

#include <algorithm>
#include <cctype>
#include <string>
#include <vector>

namespace cachalot::geometry {
namespace {

// As the models' published config.json files have them.
constexpr ModelPreset kPresets[] = {
    {"Llama-2-7B", Attention::kGrouped, 32, 32, 128, 0, 0},
    {"Llama-2-13B", Attention::kGrouped, 40, 40, 128, 0, 0},
    {"Llama-3-8B", Attention::kGrouped, 32, 8, 128, 0, 0},
    {"Llama-3-70B", Attention::kGrouped, 80, 8, 128, 0, 0},
    {"Llama-3.1-8B", Attention::kGrouped, 32, 8, 128, 0, 0},
    {"Llama-3.1-70B", Attention::kGrouped, 80, 8, 128, 0, 0},
    {"Llama-3.1-405B", Attention::kGrouped, 126, 8, 128, 0, 0},
    {"Llama-3.2-1B", Attention::kGrouped, 16, 8, 64, 0, 0},
    {"Llama-3.2-3B", Attention::kGrouped, 28, 8, 128, 0, 0},
    {"Llama-3.3-70B", Attention::kGrouped, 80, 8, 128, 0, 0},
    {"Qwen2.5-7B", Attention::kGrouped, 28, 4, 128, 0, 0},
    {"Qwen2.5-14B", Attention::kGrouped, 48, 8, 128, 0, 0},
    {"Qwen2.5-32B", Attention::kGrouped, 64, 8, 128, 0, 0},
    {"Qwen2.5-72B", Attention::kGrouped, 80, 8, 128, 0, 0},
    {"Qwen3-4B", Attention::kGrouped, 36, 8, 128, 0, 0},
    {"Qwen3-8B", Attention::kGrouped, 36, 8, 128, 0, 0},
    {"Qwen3-14B", Attention::kGrouped, 40, 8, 128, 0, 0},
    {"Qwen3-32B", Attention::kGrouped, 64, 8, 128, 0, 0},
    {"Qwen3-30B-A3B", Attention::kGrouped, 48, 4, 128, 0, 0},
    {"Qwen3-235B-A22B", Attention::kGrouped, 94, 4, 128, 0, 0},
    {"Mistral-7B", Attention::kGrouped, 32, 8, 128, 0, 0},
    {"Mixtral-8x7B", Attention::kGrouped, 32, 8, 128, 0, 0},
    {"Mixtral-8x22B", Attention::kGrouped, 56, 8, 128, 0, 0},
    {"Gemma-3-27B", Attention::kGrouped, 62, 16, 128, 0, 0},
    {"GLM-4.5", Attention::kGrouped, 92, 8, 128, 0, 0},
    {"gpt-oss-20b", Attention::kGrouped, 24, 8, 64, 0, 0},
    {"gpt-oss-120b", Attention::kGrouped, 36, 8, 64, 0, 0},
    {"DeepSeek-V2-Lite", Attention::kLatent, 27, 0, 0, 512, 64},
    {"DeepSeek-V3", Attention::kLatent, 61, 0, 0, 512, 64},
    {"DeepSeek-R1", Attention::kLatent, 61, 0, 0, 512, 64},
    {"Kimi-K2", Attention::kLatent, 61, 0, 0, 512, 64},
};

// The name as all write it: without its publisher ("meta-llama/"), "Meta-" and "-Instruct", in small letters, and
// without hyphens, so that LLaMA3-70B is Llama-3-70B.
std::string plain_name(std::string_view name) {
  if (const std::size_t slash = name.rfind('/'); slash != std::string_view::npos) {
    name.remove_prefix(slash + 1);
  }
  std::string plain;
  for (const char c : name) {
    if (c != '-' && c != '_')
      plain += static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  }
  constexpr std::string_view kBefore = "meta", kAfter = "instruct";
  if (plain.starts_with(kBefore)) plain.erase(0, kBefore.size());
  if (plain.ends_with(kAfter)) plain.resize(plain.size() - kAfter.size());
  return plain;
}

// In either case.
std::size_t common_prefix(std::string_view known, std::string_view name) {
  std::size_t length = 0;
  while (length < known.size() && length < name.size() &&
         std::tolower(static_cast<unsigned char>(known[length])) ==
             std::tolower(static_cast<unsigned char>(name[length]))) {
    ++length;
  }
  return length;
}

// Of the known names, as many as fit in an error.
constexpr std::size_t kShown = 6;

}  // namespace

std::span<const ModelPreset> model_presets() {
  return kPresets;
}

Result<const ModelPreset*> find_preset(std::string_view name) {
  std::vector<const ModelPreset*> known;
  const std::string wanted = plain_name(name);
  for (const ModelPreset& preset : kPresets) {
    if (plain_name(preset.name) == wanted) return &preset;
    known.push_back(&preset);
  }
  std::stable_sort(known.begin(), known.end(), [&](const ModelPreset* a, const ModelPreset* b) {
    return common_prefix(a->name, name) > common_prefix(b->name, name);
  });
  std::string nearest;
  for (std::size_t i = 0; i < kShown; ++i)
    nearest += std::string(i == 0 ? "" : ", ") + known[i]->name;
  const std::string shown(name.substr(0, 60));
  return Error::make(Code::kInvalidArgument,
                     "model: %s is unknown, expected one of %zu names, such as %s", shown.c_str(),
                     known.size(), nearest.c_str());
}

}  // namespace cachalot::geometry
