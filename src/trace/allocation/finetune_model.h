// Shapes of the transformers whose fine-tuning is imitated: what decides the sizes of the blocks.
#pragma once

#include <cachalot/result.h>

#include <cstdint>
#include <span>
#include <string>

namespace cachalot::trace {

struct FinetuneModel {
  const char* name;
  std::uint64_t layers, hidden, heads, ffn, vocab;
  bool has_gate;       // the feed-forward part has three matrices and a product (Llama)
  bool has_dropout;    // keeps masks of a byte an element
  bool has_positions;  // adds an embedding of positions
  bool ties_head;      // the last matrix is the embedding
};

std::span<const FinetuneModel> finetune_models();

// @errors kInvalidArgument: which ones there are
Result<FinetuneModel> find_finetune_model(const std::string& name);

}  // namespace cachalot::trace
