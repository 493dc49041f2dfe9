#include "trace/allocation/finetune_generator.h"

#include <algorithm>
#include <cmath>
#include <string>
#include <utility>
#include <vector>

#include "base/rng.h"
#include "trace/allocation/alloc_script.h"
#include "trace/allocation/finetune_layer.h"
#include "trace/allocation/finetune_weights.h"

namespace cachalot::trace {

class FinetuneGenerator::Impl {
 public:
  explicit Impl(const FinetuneOptions& options)
      : options_(options), weights_(options_, script_), rng_(options.seed) {
    weights_.set_up();
  }
  Impl(const Impl&) = delete;
  Impl& operator=(const Impl&) = delete;

  bool next(AllocEvent& event) {
    const AllocEvent* waiting = script_.take();
    if (waiting == nullptr && iterations_ < options_.iterations) {
      iterate();
      waiting = script_.take();
    }
    if (waiting == nullptr) return false;
    event = *waiting;
    return true;
  }

 private:
  using Block = AllocScript::Block;
  using Blocks = std::vector<Block>;

  void iterate() {
    script_.mark("iteration " + std::to_string(++iterations_));
    const std::uint64_t sequence = draw_sequence();
    const FinetuneLayer layer(options_, sequence, script_);
    Blocks given;
    for (int i = 0; i < 3; ++i) given.push_back(script_.allocate(8 * layer.tokens()));
    given.push_back(script_.allocate(2 * layer.tokens() * sequence));  // attention mask
    std::vector<FinetuneLayer::Saved> saved(options_.model.layers);
    Blocks inputs = {embed(layer)};  // of the layers, and then what comes out of the last
    forward(layer, inputs, saved);
    const Block loss = lose(layer, sequence);
    const Block gradient = backward_from_loss(layer, inputs.back());
    inputs.pop_back();
    const Block of_embedding = backward(layer, inputs, saved, gradient);
    weights_.take_embedding_gradient();
    script_.free(of_embedding);
    script_.free(loss);
    script_.free(given);
    weights_.step();
  }

  std::uint64_t draw_sequence() {
    const double least = static_cast<double>(options_.sequence) * (1 - options_.dynamic_padding);
    const auto low = std::max<std::uint64_t>(2, static_cast<std::uint64_t>(std::ceil(least)));
    return low + rng_.below(options_.sequence - low + 1);
  }

  Block embed(const FinetuneLayer& layer) {
    const Block weights = weights_.gather_embedding();
    Block result = script_.allocate(layer.hidden_bytes());
    if (options_.model.has_positions) {
      const Block positions = script_.allocate(layer.hidden_bytes());
      const Block sum = script_.allocate(layer.hidden_bytes());
      script_.free(std::exchange(result, sum));
      script_.free(positions);
    }
    script_.free(weights);
    return result;
  }

  void forward(const FinetuneLayer& layer, Blocks& outputs,
               std::vector<FinetuneLayer::Saved>& saved) {
    Blocks weights = weights_.gather_layer(), next_weights;
    for (std::uint64_t l = 0; l < options_.model.layers; ++l) {
      outputs.push_back(layer.forward(saved[l], [&] {
        if (l + 1 < options_.model.layers) next_weights = weights_.gather_layer();
      }));
      if (options_.recompute) {
        script_.free(saved[l].front);
        script_.free(saved[l].rest);
      }
      script_.free(weights);
      weights.swap(next_weights);
    }
  }

  // Logits, shifted by a token against the labels, and their soft-max in single precision: the largest
  // blocks of all. What remains is in head_.
  Block lose(const FinetuneLayer& layer, std::uint64_t sequence) {
    const std::uint64_t logit_bytes = 2 * layer.tokens() * options_.model.vocab;
    const std::uint64_t shifted_bytes = logit_bytes / sequence * (sequence - 1);
    head_.norm = script_.allocate(layer.hidden_bytes());
    head_.weights = weights_.gather_embedding();
    const Block logits = script_.allocate(logit_bytes);
    const Block shifted = script_.allocate(shifted_bytes);
    const Block single = script_.allocate(2 * shifted_bytes);
    const Block soft_max = script_.allocate(2 * shifted_bytes);
    const Block loss = script_.allocate(512);
    const Block of_single = script_.allocate(2 * shifted_bytes);
    script_.free(soft_max);
    const Block of_shifted = script_.allocate(shifted_bytes);
    script_.free(of_single);
    script_.free(single);
    script_.free(shifted);
    head_.of_logits = script_.allocate(logit_bytes);
    script_.free(of_shifted);
    script_.free(logits);
    return loss;
  }

  // The gradient of the last layer's output, which is freed.
  Block backward_from_loss(const FinetuneLayer& layer, Block output) {
    const Block of_norm = script_.allocate(layer.hidden_bytes());
    weights_.take_embedding_gradient();
    script_.free(head_.of_logits);
    script_.free(head_.weights);
    const Block gradient = script_.allocate(layer.hidden_bytes());
    script_.free(of_norm);
    script_.free(head_.norm);
    script_.free(output);
    return gradient;
  }

  // Frees what forward left, and the gradient; returns that of the first layer's input.
  Block backward(const FinetuneLayer& layer, const Blocks& inputs,
                 std::vector<FinetuneLayer::Saved>& saved, Block gradient) {
    Blocks weights = weights_.gather_layer(), next_weights;
    if (options_.model.layers > 1) next_weights = weights_.gather_layer();
    for (std::uint64_t l = options_.model.layers; l-- > 0;) {
      if (options_.recompute) script_.free(layer.forward(saved[l], [] {}));
      gradient = layer.backward(saved[l], gradient);
      weights_.give_up_layer_gradients();
      script_.free(inputs[l]);
      script_.free(weights);
      weights.swap(next_weights);
      if (l >= 2) next_weights = weights_.gather_layer();
    }
    return gradient;
  }

  struct Head {
    Block norm = 0, weights = 0, of_logits = 0;
  };

  const FinetuneOptions options_;
  AllocScript script_;
  FinetuneWeights weights_;
  base::Rng rng_;
  Head head_;
  std::uint64_t iterations_ = 0;
};

Result<FinetuneGenerator> FinetuneGenerator::make(const FinetuneOptions& options) {
  CACHALOT_TRY(options.check());
  return FinetuneGenerator(std::make_unique<Impl>(options));
}

FinetuneGenerator::FinetuneGenerator(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
FinetuneGenerator::FinetuneGenerator(FinetuneGenerator&&) noexcept = default;
FinetuneGenerator& FinetuneGenerator::operator=(FinetuneGenerator&&) noexcept = default;
FinetuneGenerator::~FinetuneGenerator() = default;

bool FinetuneGenerator::next(AllocEvent& event) {
  return impl_->next(event);
}

}  // namespace cachalot::trace
