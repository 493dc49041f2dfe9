// A model by the config.json that it is published with, as the Hugging Face libraries write it.
#pragma once

#include <cachalot/result.h>

#include <string>

namespace cachalot::apps {

// Whether a --model names a file or a folder, not a model: it has a slash, or ends with .json.
bool is_model_path(const std::string& text);

enum class LayersOf {
  kModel,  // all of them: what a token takes
  kBlock,  // those that share a block: with and without a window, vLLM keeps layers in blocks of their own
};

// Dimensions as geometry::parse_model() takes them: "layers=32,kv_heads=8,head_dim=128,dtype=bf16".
// @param  path  a config.json, or the folder that has it
// @errors kNotFound, kPermission, kIo: the file cannot be read; kBadInput: it is no JSON or has no such dimensions;
//         kUnsupported: layers that keep no keys and values of each token, which only the engine can size
Result<std::string> read_model_config(const std::string& path, LayersOf layers);

}  // namespace cachalot::apps
