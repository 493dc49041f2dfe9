#include "trace/allocation/finetune_weights.h"

#include <algorithm>

namespace cachalot::trace {
namespace {

constexpr std::uint64_t kBucketElements = 500'000'000;  // DeepSpeed's reduce_bucket_size
constexpr std::uint64_t kGroupElements = 50'000'000;    // that the optimizer updates at a time

}  // namespace

FinetuneWeights::FinetuneWeights(const FinetuneOptions& options, AllocScript& script)
    : options_(options),
      script_(script),
      matrices_(layer_matrices(options.model)),
      stream_(options.gather_stream ? 1 : 0) {}

std::uint64_t FinetuneWeights::shard(std::uint64_t elements) const {
  return (elements + options_.gpus - 1) / options_.gpus;
}

std::uint64_t FinetuneWeights::trained() const {
  std::uint64_t of_layer = 0;
  for (const FinetuneMatrix& matrix : matrices_) {
    of_layer += trained_elements(matrix, options_.lora_rank);
  }
  const std::uint64_t embeddings = options_.model.ties_head ? 1 : 2;
  return options_.model.layers * of_layer +
         (options_.lora_rank == 0 ? embeddings * embedding_elements() : 0);
}

void FinetuneWeights::set_up() {
  if (!options_.offload) set_up_shards();
  script_.allocate(2 * std::min(kBucketElements, trained()));
  for (std::uint64_t layer = 0; layer < options_.model.layers; ++layer) set_up_small_parameters();
}

// Weights, master weights and two moments, gradients.
void FinetuneWeights::set_up_shards() {
  for (std::uint64_t layer = 0; layer < options_.model.layers; ++layer) {
    for (const FinetuneMatrix& matrix : matrices_) script_.allocate(2 * shard(matrix.elements()));
  }
  for (int i = options_.model.ties_head ? 1 : 0; i < 2; ++i) {
    script_.allocate(2 * shard(embedding_elements()));
  }
  for (int i = 0; i < 3; ++i) script_.allocate(4 * shard(trained()));
  script_.allocate(2 * shard(trained()));
}

// Whole on every GPU: biases of the matrices and two norms with bias, or two norms without.
void FinetuneWeights::set_up_small_parameters() {
  const int count = options_.model.has_gate ? 2 : 10;
  for (int i = 0; i < count; ++i) {
    script_.allocate(2 * (i == 4 ? options_.model.ffn : options_.model.hidden));
  }
}

FinetuneWeights::Block FinetuneWeights::gather(std::uint64_t elements) {
  if (!options_.offload) return script_.allocate(2 * elements, stream_);
  const Block from_host = script_.allocate(2 * shard(elements), stream_);
  const Block whole = script_.allocate(2 * elements, stream_);
  script_.free(from_host);
  return whole;
}

std::vector<FinetuneWeights::Block> FinetuneWeights::gather_layer() {
  std::vector<Block> blocks;
  for (const FinetuneMatrix& matrix : matrices_) blocks.push_back(gather(matrix.elements()));
  return blocks;
}

void FinetuneWeights::give_up_layer_gradients() {
  if (options_.offload) move_trained_shards_of_layer();
}

void FinetuneWeights::take_embedding_gradient() {
  if (options_.lora_rank != 0) return;
  const Block gradient = script_.allocate(2 * embedding_elements());
  script_.touch(2 * embedding_elements());  // packed for the reduce-scatter
  script_.free(gradient);
}

void FinetuneWeights::step() {
  if (options_.offload) {
    for (std::uint64_t l = 0; l < options_.model.layers; ++l) move_trained_shards_of_layer();
    return;
  }
  for (std::uint64_t rest = shard(trained()); rest > 0;) {
    const std::uint64_t group = std::min(rest, kGroupElements);
    std::vector<Block> scratch = {script_.allocate(4 * group), script_.allocate(4 * group)};
    script_.free(scratch);
    rest -= group;
  }
}

void FinetuneWeights::move_trained_shards_of_layer() {
  for (const FinetuneMatrix& matrix : matrices_) {
    script_.touch(2 * shard(trained_elements(matrix, options_.lora_rank)), stream_);
  }
}

}  // namespace cachalot::trace
