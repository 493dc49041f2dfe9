// Allocation traces of a GPU that takes part in fine-tuning a transformer: ZeRO-3 over several GPUs, with
// LoRA, recomputation and offload as one likes. Made up after what a framework does, to test allocators
// on; no recording of one.
//
// Setup, which lives forever: shards of the weights, of the optimizer's state (three of four bytes an
// element that is trained) and of the gradients, a reduction bucket, and all small parameters whole. With
// offload only the last two.
//
// An iteration, behind a mark "iteration N": inputs; embedding; the layers, of which each has its weights
// gathered while the one before it computes; loss; the layers backward, with two layers' weights at a time;
// the optimizer's step. finetune_layer.h has the layers. What makes this hard for an allocator: gathered
// weights are taken in the middle of one layer's activations and given back in the middle of the next
// one's, and the largest blocks, those of the loss, come when everything is cut up.
//
// Equal options give equal traces on every machine. Chance decides the sequence lengths of dynamic padding
// and nothing else: without it all iterations are equal.
//
// @source the pattern: Guo et al., GMLake, ASPLOS 2024, with DeepSpeed's ZeRO-3 and PyTorch in eager mode
#pragma once

#include <cachalot/result.h>

#include <cstdint>
#include <memory>

#include "trace/allocation/alloc_event.h"
#include "trace/allocation/finetune_options.h"

namespace cachalot::trace {

// @threads one at a time
// @cost    memory by the events of an iteration, some thousands
class FinetuneGenerator {
 public:
  // @errors as FinetuneOptions::check
  static Result<FinetuneGenerator> make(const FinetuneOptions& options);
  FinetuneGenerator(FinetuneGenerator&&) noexcept;
  FinetuneGenerator& operator=(FinetuneGenerator&&) noexcept;
  ~FinetuneGenerator();

  // As AllocTrace gives them, slots too. False at the end. A mark's text is valid until the next call.
  bool next(AllocEvent& event);

 private:
  class Impl;
  explicit FinetuneGenerator(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace cachalot::trace
