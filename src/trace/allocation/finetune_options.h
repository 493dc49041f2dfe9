// What is fine-tuned, on what, and with which of the ways to save memory.
#pragma once

#include <cachalot/result.h>

#include <cstdint>

#include "trace/allocation/finetune_model.h"

namespace cachalot::trace {

struct FinetuneOptions {
  FinetuneModel model = finetune_models().front();
  std::uint64_t gpus = 4;  // over which ZeRO-3 spreads weights, gradients and optimizer
  std::uint64_t batch = 16;
  std::uint64_t sequence = 512;  // tokens, the most of an iteration
  std::uint64_t lora_rank = 0;   // 0: all weights are trained
  bool recompute = false;        // keeps of a layer its input only, and computes it again
  bool offload = false;          // weights and optimizer lie in host memory
  // An iteration's sequences are padded to the longest of its batch: between sequence * (1 - this) and
  // sequence tokens, at random.
  double dynamic_padding = 0;
  bool gather_stream = false;  // gathered weights and copies from the host are of stream 1
  std::uint64_t iterations = 6;
  std::uint64_t seed = 1;

  // @errors kInvalidArgument: a number out of its range, named with its value
  Status check() const;
};

}  // namespace cachalot::trace
