// The weights of a fine-tuning run as ZeRO-3 holds them: this GPU's shards, whole matrices for as long as
// they are computed with, gradients on their way to their shards, and the optimizer's step.
//
// With offload the shards lie in host memory. They pass through this GPU: before each gather, behind each
// layer's backward pass, and after the step.
#pragma once

#include <cstdint>
#include <vector>

#include "trace/allocation/alloc_script.h"
#include "trace/allocation/finetune_layer.h"
#include "trace/allocation/finetune_options.h"

namespace cachalot::trace {

// @threads one at a time
class FinetuneWeights {
 public:
  using Block = AllocScript::Block;

  // Both are kept.
  FinetuneWeights(const FinetuneOptions& options, AllocScript& script);

  // What lives as long as the program.
  void set_up();

  // Whole matrices; the caller frees them.
  Block gather_embedding() { return gather(embedding_elements()); }
  std::vector<Block> gather_layer();

  // The gradients of a layer, or of the embedding, have been computed.
  void give_up_layer_gradients();
  void take_embedding_gradient();  // of its own block; only where all weights are trained
  void step();

 private:
  std::uint64_t shard(std::uint64_t elements) const;
  std::uint64_t embedding_elements() const { return options_.model.hidden * options_.model.vocab; }
  std::uint64_t trained() const;
  void set_up_shards();
  void set_up_small_parameters();
  Block gather(std::uint64_t elements);
  void move_trained_shards_of_layer();

  const FinetuneOptions& options_;
  AllocScript& script_;
  const std::vector<FinetuneMatrix> matrices_;
  const std::uint32_t stream_;  // of what is gathered or copied
};

}  // namespace cachalot::trace
