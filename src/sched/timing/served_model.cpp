#include "sched/timing/served_model.h"

#include "geometry/presets.h"

namespace cachalot::sched {
namespace {

// What the list of models (geometry/presets.h) does not say. Source: config.json of each model, as its publisher has it.
struct Dimensions {
  const char* name;
  double width;
  double heads;
  double inner_width;
  double vocabulary;
};
constexpr Dimensions kDimensions[] = {
    {"Llama-2-7B", 4096, 32, 11008, 32000},        {"Llama-2-13B", 5120, 40, 13824, 32000},
    {"Llama-3-8B", 4096, 32, 14336, 128256},       {"Llama-3-70B", 8192, 64, 28672, 128256},
    {"Llama-3.1-8B", 4096, 32, 14336, 128256},     {"Llama-3.1-70B", 8192, 64, 28672, 128256},
    {"Llama-3.1-405B", 16384, 128, 53248, 128256}, {"Llama-3.2-1B", 2048, 32, 8192, 128256},
    {"Llama-3.2-3B", 3072, 24, 8192, 128256},      {"Llama-3.3-70B", 8192, 64, 28672, 128256},
    {"Qwen2.5-7B", 3584, 28, 18944, 152064},       {"Qwen2.5-14B", 5120, 40, 13824, 152064},
    {"Qwen2.5-32B", 5120, 40, 27648, 152064},      {"Qwen2.5-72B", 8192, 64, 29568, 152064},
    {"Qwen3-4B", 2560, 32, 9728, 151936},          {"Qwen3-8B", 4096, 32, 12288, 151936},
    {"Qwen3-14B", 5120, 40, 17408, 151936},        {"Qwen3-32B", 5120, 64, 25600, 151936},
    {"Mistral-7B", 4096, 32, 14336, 32768},
};

ServedModel served(const Dimensions& dimensions, const geometry::ModelPreset& preset) {
  return {preset.name,
          static_cast<double>(preset.layers),
          dimensions.width,
          dimensions.heads,
          static_cast<double>(preset.kv_heads),
          static_cast<double>(preset.head_dim),
          dimensions.inner_width,
          dimensions.vocabulary};
}

}  // namespace

Result<ServedModel> find_served_model(std::string_view name) {
  CACHALOT_TRY_ASSIGN(const geometry::ModelPreset* const preset, geometry::find_preset(name));
  for (const Dimensions& dimensions : kDimensions) {
    if (std::string_view(dimensions.name) == preset->name) return served(dimensions, *preset);
  }
  return Error::make(Code::kInvalidArgument,
                     "model: %s has experts, latent attention or sliding windows, expected a dense "
                     "model: the times of others are not known",
                     preset->name);
}

}  // namespace cachalot::sched
