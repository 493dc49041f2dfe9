// A model file (GGUF) of the Llama architecture with random weights: the size and speed of a real
// model without its data. Its texts mean nothing, but repeat exactly.
#pragma once

#include <cachalot/result.h>
#include <ggml.h>

#include <cstdint>
#include <string>

namespace cachalot::llama {

struct RandomModelShape {
  const char* name;
  std::uint32_t layers, hidden, heads, kv_heads, ffn, vocabulary;

  std::uint32_t head_dim() const { return hidden / heads; }
  std::uint64_t parameters() const;
  // Of keys and values in f16.
  std::uint64_t kv_bytes_per_token() const;
};

inline constexpr RandomModelShape kRandomModelShapes[] = {
    {"tiny", 4, 256, 4, 2, 512, 2048},
    {"125m", 12, 768, 12, 4, 2048, 32000},
};

// Writes the file whole or not at all: under another name first, which is then given up for `path`.
// The same shape, type and seed give the same bytes everywhere.
// @param type  of the matrices, whose rows it must divide; vectors are always f32
// @errors kNoSpace, kPermission, kIo, kNotFound: the folder
Status write_random_model(const std::string& path, const RandomModelShape& shape, ggml_type type,
                          std::uint64_t seed);

}  // namespace cachalot::llama
