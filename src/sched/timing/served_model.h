// Dimensions of a model as an engine computes it: operations, weights and KV bytes of a step follow from them.
//
// Dense models with grouped attention only. The list of models, with the geometry of their KV cache, is
// geometry/presets.h.
#pragma once

#include <cachalot/result.h>

#include <cstdint>
#include <string>
#include <string_view>

namespace cachalot::sched {

struct ServedModel {
  const char* name;  // without the name of the organisation
  double layers;
  double width;  // hidden size
  double heads;  // of the queries
  double kv_heads;
  double head_dim;
  double inner_width;  // of the feed-forward part, which is gated
  double vocabulary;

  // Weights of all layers, without embedding and output head.
  double layer_weights() const {
    return layers * (width * (heads + 2 * kv_heads) * head_dim + heads * head_dim * width +
                     3 * width * inner_width);
  }
  // Of the embedding, and again of the output head.
  double vocabulary_weights() const { return vocabulary * width; }
  double kv_numbers_per_token() const { return layers * 2 * kv_heads * head_dim; }

  // Floating-point operations: a token through all layers, without attention to its context.
  double flops_per_token() const { return 2 * layer_weights(); }
  // Attention between a token and so many tokens, itself among them.
  double attention_flops(double tokens) const { return 4 * layers * heads * head_dim * tokens; }
  // Of `new_tokens` in a row, the first of which has `context_tokens` before it.
  double attention_flops(double new_tokens, double context_tokens) const {
    return attention_flops(new_tokens * (context_tokens + new_tokens / 2));
  }
};

// Any name of the list of models (geometry/presets.h), however it is written.
// @errors kInvalidArgument: no such model, with the names most like it; one that is not dense
Result<ServedModel> find_served_model(std::string_view name);

}  // namespace cachalot::sched
