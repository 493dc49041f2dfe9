#include "trace/allocation/finetune_layer.h"

namespace cachalot::trace {

std::vector<FinetuneMatrix> layer_matrices(const FinetuneModel& model) {
  const std::uint64_t h = model.hidden, f = model.ffn;
  std::vector<FinetuneMatrix> matrices(4, {h, h});
  matrices.push_back({h, f});
  if (model.has_gate) matrices.push_back({h, f});
  matrices.push_back({f, h});
  return matrices;
}

std::uint64_t trained_elements(const FinetuneMatrix& matrix, std::uint64_t lora_rank) {
  return lora_rank == 0 ? matrix.elements() : lora_rank * (matrix.rows + matrix.columns);
}

FinetuneLayer::FinetuneLayer(const FinetuneOptions& options, std::uint64_t sequence,
                             AllocScript& script)
    : options_(options),
      script_(script),
      matrices_(layer_matrices(options.model)),
      tokens_(options.batch * sequence),
      hidden_(2 * tokens_ * options.model.hidden),
      ffn_(2 * tokens_ * options.model.ffn),
      scores_(2 * options.batch * options.model.heads * sequence * sequence),
      lora_(2 * tokens_ * options.lora_rank) {}

FinetuneLayer::Block FinetuneLayer::forward(Saved& saved,
                                            const std::function<void()>& in_the_middle) const {
  saved.front.push_back(script_.allocate(hidden_));      // norm
  saved.front.push_back(script_.allocate(8 * tokens_));  // its mean and variance
  for (int i = 0; i < 3; ++i) {
    const Block result = linear(hidden_, saved.front);
    saved.front.push_back(script_.allocate(hidden_));  // query, key or value, contiguous
    script_.free(result);
  }
  in_the_middle();
  const Block context = attention(saved);
  saved.rest.push_back(script_.allocate(hidden_));
  script_.free(context);
  const Block projected = dropped_out(linear(hidden_, saved.rest), saved.rest);
  saved.rest.push_back(script_.allocate(hidden_));  // residual
  script_.free(projected);
  saved.rest.push_back(script_.allocate(hidden_));  // norm
  const Block result = dropped_out(feed_forward(saved.rest), saved.rest);
  const Block output = script_.allocate(hidden_);
  script_.free(result);
  return output;
}

// A product with a matrix. With LoRA the low-rank product is added to it.
FinetuneLayer::Block FinetuneLayer::linear(std::uint64_t out_bytes,
                                           std::vector<Block>& saved) const {
  const Block product = script_.allocate(out_bytes);
  if (options_.lora_rank == 0) return product;
  saved.push_back(script_.allocate(lora_));
  const Block low_rank = script_.allocate(out_bytes);
  const Block sum = script_.allocate(out_bytes);
  script_.free(product);
  script_.free(low_rank);
  return sum;
}

// From scores to context.
FinetuneLayer::Block FinetuneLayer::attention(Saved& saved) const {
  const Block scores = script_.allocate(scores_);
  const Block masked = script_.allocate(scores_);
  script_.free(scores);
  const Block single = script_.allocate(2 * scores_);
  const Block soft_max = script_.allocate(2 * scores_);
  script_.free(single);
  script_.free(masked);
  saved.front.push_back(script_.allocate(scores_));
  script_.free(soft_max);
  if (options_.model.has_dropout) {
    saved.front.push_back(script_.allocate(scores_ / 2));
    saved.rest.push_back(script_.allocate(scores_));
  }
  return script_.allocate(hidden_);
}

FinetuneLayer::Block FinetuneLayer::dropped_out(Block block, std::vector<Block>& saved) const {
  if (!options_.model.has_dropout) return block;
  saved.push_back(script_.allocate(hidden_ / 2));
  const Block result = script_.allocate(hidden_);
  script_.free(block);
  return result;
}

FinetuneLayer::Block FinetuneLayer::feed_forward(std::vector<Block>& saved) const {
  const auto into_ffn = [&] {
    const Block result = linear(ffn_, saved);
    saved.push_back(result);
  };
  into_ffn();
  saved.push_back(script_.allocate(ffn_));  // activation
  if (options_.model.has_gate) {
    into_ffn();
    saved.push_back(script_.allocate(ffn_));  // product
  }
  return linear(hidden_, saved);
}

FinetuneLayer::Block FinetuneLayer::backward(Saved& saved, Block gradient) const {
  std::vector<Block> gradients;
  const Block of_norm = feed_forward_backward(gradients);
  script_.free(saved.rest);
  const Block of_residual = script_.allocate(hidden_);
  script_.free(of_norm);
  script_.free(gradient);
  const Block of_scores = scores_backward();
  std::vector<Block> of_qkv;
  for (int i = 0; i < 3; ++i) of_qkv.push_back(script_.allocate(hidden_));
  script_.free(of_scores);
  std::uint64_t trained = 0;
  for (std::size_t i = 0; i < matrices_.size(); ++i) {
    const std::uint64_t elements = trained_elements(matrices_[i], options_.lora_rank);
    if (i < 4) gradients.push_back(script_.allocate(2 * elements));
    trained += elements;
  }
  script_.free(saved.front);
  const Block of_input = script_.allocate(hidden_);
  script_.free(of_qkv);
  script_.free(of_residual);
  const Block packed = script_.allocate(2 * trained);  // for the reduce-scatter
  script_.free(gradients);
  script_.free(packed);
  return of_input;
}

// From the output's gradient to that of the second norm.
FinetuneLayer::Block FinetuneLayer::feed_forward_backward(std::vector<Block>& gradients) const {
  const Block of_activation = script_.allocate(ffn_);
  take_gradients(matrices_.back(), gradients);
  std::vector<Block> of_results = {script_.allocate(ffn_)};
  if (options_.model.has_gate) of_results.push_back(script_.allocate(ffn_));
  script_.free(of_activation);
  const Block of_norm = script_.allocate(hidden_);
  take_gradients(matrices_[4], gradients);
  if (options_.model.has_gate) {
    const Block second = script_.allocate(hidden_);  // is added to the first
    take_gradients(matrices_[5], gradients);
    script_.free(second);
  }
  script_.free(of_results);
  return of_norm;
}

void FinetuneLayer::take_gradients(const FinetuneMatrix& matrix,
                                   std::vector<Block>& gradients) const {
  if (options_.lora_rank == 0) {
    gradients.push_back(script_.allocate(2 * matrix.elements()));
    return;
  }
  gradients.push_back(script_.allocate(2 * options_.lora_rank * options_.model.ffn));
  gradients.push_back(script_.allocate(2 * options_.lora_rank * options_.model.hidden));
}

FinetuneLayer::Block FinetuneLayer::scores_backward() const {
  const Block of_probabilities = script_.allocate(scores_);
  const Block single = script_.allocate(2 * scores_);
  const Block of_soft_max = script_.allocate(2 * scores_);
  script_.free(single);
  const Block of_scores = script_.allocate(scores_);
  script_.free(of_soft_max);
  script_.free(of_probabilities);
  return of_scores;
}

}  // namespace cachalot::trace
