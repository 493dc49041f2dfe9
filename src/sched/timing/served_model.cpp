#include "sched/timing/served_model.h"

#include <algorithm>
#include <cctype>

namespace cachalot::sched {
namespace {

// Source: config.json of each model, as its publisher has it.
constexpr ServedModel kModels[] = {
    {"Llama-2-7B", 32, 4096, 32, 32, 128, 11008, 32000},
    {"Llama-2-13B", 40, 5120, 40, 40, 128, 13824, 32000},
    {"Llama-3.1-8B", 32, 4096, 32, 8, 128, 14336, 128256},
    {"Llama-3.1-70B", 80, 8192, 64, 8, 128, 28672, 128256},
    {"LLaMA3-70B", 80, 8192, 64, 8, 128, 28672, 128256},
    {"Llama-3.3-70B", 80, 8192, 64, 8, 128, 28672, 128256},
    {"Qwen2.5-32B", 64, 5120, 40, 8, 128, 27648, 152064},
    {"Qwen3-8B", 36, 4096, 32, 8, 128, 12288, 151936},
    {"Qwen3-14B", 40, 5120, 40, 8, 128, 17408, 151936},
    {"Qwen3-32B", 64, 5120, 64, 8, 128, 25600, 151936},
};

bool same_name(std::string_view a, std::string_view b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(), [](unsigned char x, unsigned char y) {
    return std::tolower(x) == std::tolower(y);
  });
}

std::string_view without(std::string_view text, std::string_view ending) {
  if (text.size() > ending.size() && same_name(text.substr(text.size() - ending.size()), ending)) {
    text.remove_suffix(ending.size());
  }
  return text;
}

}  // namespace

std::span<const ServedModel> served_models() {
  return kModels;
}

Result<ServedModel> find_served_model(std::string_view name) {
  std::string_view wanted = name;
  if (const std::size_t slash = wanted.rfind('/'); slash != std::string_view::npos) {
    wanted.remove_prefix(slash + 1);
  }
  wanted = without(wanted, "-Instruct");
  std::string names;
  for (const ServedModel& model : kModels) {
    if (same_name(model.name, wanted)) return model;
    names += (names.empty() ? "" : ", ") + std::string(model.name);
  }
  return Error::make(Code::kInvalidArgument,
                     "model \"%.60s\" has no dimensions here; expected one of %s",
                     std::string(name).c_str(), names.c_str());
}

}  // namespace cachalot::sched
