// For tests: the ranks of an instance, and an instance whose ranks have caches in layouts of their own.
#pragma once

#include <memory>
#include <utility>
#include <vector>

#include "testing/transfer/test_cache.h"
#include "transfer/pair/geometry_pair.h"

namespace cachalot::transfer {

// `tp` ranks a stage, on up to `machines` machines. Stages have any number of layers if there are several.
inline std::vector<Rank> any_ranks(const KvGeometry& model, std::uint32_t tp, std::uint32_t stages,
                                   std::uint32_t machines, base::Rng& rng) {
  std::vector<Rank> ranks;
  std::uint32_t first = 0;
  for (std::uint32_t stage = 0; stage < stages; ++stage) {
    std::uint32_t last = model.layers;
    if (stage + 1 < stages) {
      const std::uint32_t later = stages - 1 - stage;  // each needs a layer
      last = first + 1 + static_cast<std::uint32_t>(rng.below(model.layers - later - first));
    }
    for (std::uint32_t rank = 0; rank < tp; ++rank) {
      KvGeometry geometry = part_of(model, rank, tp);
      geometry.layers = last - first;
      geometry.pp_rank = stage;
      geometry.pp_size = stages;
      ranks.push_back({geometry, {first, last}, rng.below(machines)});
    }
    first = last;
  }
  // As an engine gives them if all stages are alike.
  for (Rank& rank : ranks) {
    if (stages == 1 || (stages == 2 && first == 2 * ranks[0].layers.last)) rank.layers = {};
  }
  return ranks;
}

// An instance with a request of some tokens.
class TestInstance {
 public:
  TestInstance(std::vector<Rank> ranks, std::uint64_t tokens, base::Rng& rng)
      : ranks_(std::move(ranks)) {
    // An engine has one page size; page ids differ from stage to stage at most. Here all differ.
    const auto page_tokens = static_cast<std::uint32_t>(1 + rng.below(12));
    for (const Rank& rank : ranks_) {
      caches_.push_back(std::make_unique<TestCache>(rank.geometry, any_layout(rank.geometry, rng),
                                                    page_tokens, tokens, rng));
      Result<RankBox> box = box_of(rank);
      boxes_.push_back(*box);
    }
  }

  std::span<const Rank> ranks() const { return ranks_; }
  std::size_t size() const { return ranks_.size(); }
  TestCache& cache(std::size_t rank) { return *caches_[rank]; }
  const RankBox& box(std::size_t rank) const { return boxes_[rank]; }

  void fill(std::uint64_t first_token, std::uint64_t tokens) {
    for (std::size_t rank = 0; rank < size(); ++rank) fill(rank, first_token, tokens);
  }
  void fill(std::size_t rank, std::uint64_t first_token, std::uint64_t tokens) {
    caches_[rank]->fill(boxes_[rank].layers, boxes_[rank].heads, first_token, tokens);
  }

 private:
  std::vector<Rank> ranks_;
  std::vector<RankBox> boxes_;
  std::vector<std::unique_ptr<TestCache>> caches_;
};

}  // namespace cachalot::transfer
