#include "trace/allocation/finetune_model.h"

namespace cachalot::trace {
namespace {

// Their published configurations.
constexpr FinetuneModel kModels[] = {
    {"OPT-1.3B", 24, 2048, 32, 8192, 50272, false, true, true, true},
    {"OPT-13B", 40, 5120, 40, 20480, 50272, false, true, true, true},
    {"Llama-7B", 32, 4096, 32, 11008, 32000, true, false, false, false},
    {"Llama-13B", 40, 5120, 40, 13824, 32000, true, false, false, false},
    {"Vicuna-13B", 40, 5120, 40, 13824, 32000, true, false, false, false},
    {"GPT-NeoX-20B", 44, 6144, 64, 24576, 50432, false, false, false, false},
};

}  // namespace

std::span<const FinetuneModel> finetune_models() {
  return kModels;
}

Result<FinetuneModel> find_finetune_model(const std::string& name) {
  std::string names;
  for (const FinetuneModel& model : kModels) {
    if (name == model.name) return model;
    if (!names.empty()) names += ", ";
    names += model.name;
  }
  return Error::make(Code::kInvalidArgument, "model: \"%.60s\" is none, expected one of %s",
                     name.c_str(), names.c_str());
}

}  // namespace cachalot::trace
