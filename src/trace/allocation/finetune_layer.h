// The blocks that one layer of a transformer takes, forward and backward, in the order of an eager
// framework: half precision, attention without fused kernels, soft-max in single precision.
//
// With T tokens (batch * sequence), H = 2 * T * hidden, F = 2 * T * ffn, S = 2 * batch * heads * sequence^2:
//
//   forward    norm H; query, key and value H each, and a contiguous copy; [the next layer's weights are
//              gathered here]; scores S twice, soft-max 2S twice, probabilities S, mask S/2, result S;
//              context H twice, projection H, mask H/2, residual H; norm H; F twice; H, mask H/2, H
//   backward   gradients of these, from the end; what forward had saved goes when its part is done
//   LoRA       of each matrix two results and their sum, and 2 * T * rank
//
// What is saved for the backward pass goes in two parts: what stands in front of the attention's result,
// and what comes behind. So blocks of all ages and sizes lie beside each other.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "trace/allocation/alloc_script.h"
#include "trace/allocation/finetune_options.h"

namespace cachalot::trace {

// A matrix of weights.
struct FinetuneMatrix {
  std::uint64_t rows, columns;
  std::uint64_t elements() const { return rows * columns; }
};

// Those of a layer: four of the attention, then two or three of the feed-forward part.
std::vector<FinetuneMatrix> layer_matrices(const FinetuneModel& model);

// How many elements of the matrix are trained.
std::uint64_t trained_elements(const FinetuneMatrix& matrix, std::uint64_t lora_rank);

// @threads one at a time
class FinetuneLayer {
 public:
  using Block = AllocScript::Block;
  struct Saved {
    std::vector<Block> front, rest;
  };

  // `script` is kept.
  FinetuneLayer(const FinetuneOptions& options, std::uint64_t sequence, AllocScript& script);

  // The layer's output; the caller frees it, and all that is saved in the end.
  // `in_the_middle` is called between the two halves.
  Block forward(Saved& saved, const std::function<void()>& in_the_middle) const;
  // Frees `gradient`, that of the output, and all that was saved; the gradient of the input.
  Block backward(Saved& saved, Block gradient) const;

  std::uint64_t tokens() const { return tokens_; }
  std::uint64_t hidden_bytes() const { return hidden_; }

 private:
  Block linear(std::uint64_t out_bytes, std::vector<Block>& saved) const;
  Block attention(Saved& saved) const;
  Block dropped_out(Block block, std::vector<Block>& saved) const;
  Block feed_forward(std::vector<Block>& saved) const;
  Block feed_forward_backward(std::vector<Block>& gradients) const;
  Block scores_backward() const;
  void take_gradients(const FinetuneMatrix& matrix, std::vector<Block>& gradients) const;

  const FinetuneOptions& options_;
  AllocScript& script_;
  std::vector<FinetuneMatrix> matrices_;
  std::uint64_t tokens_, hidden_, ffn_, scores_, lora_;
};

}  // namespace cachalot::trace
