// Which rows of a chain of blocks a call reads, where each head of each layer has chosen tokens of its own (sparse
// attention), and where each row goes in the engine's pages.
//
// A row is what one head keeps of one token in one layer: keys or values, or both if they are contiguous on both
// sides.
//
//   CACHALOT_TRY_ASSIGN(const RowPlan plan, RowPlan::make(cache, order, choice, layers));  // once for a call
//   RowWalk walk(plan);
//   walk.for_each_row(number, [&](const Row& row) { … });                                 // of one block
//
// 1. A plan that was made leads to no byte outside of its chain's blocks and of the cache's pages.
// 2. The rows of a block come in pool order, each once: rows that are neighbours on both sides follow each other.
#pragma once

#include <cachalot/result.h>

#include <algorithm>
#include <cstdint>
#include <span>
#include <vector>

#include "kv/plan.h"

namespace cachalot::kv {

using cachalot::TokenPlace;

// What a call has chosen. All that it refers to outlives the plan.
struct RowChoice {
  // [chosen layers * heads]: of the first layer head 0, head 1, …: tokens of the chain, ascending
  std::span<const std::span<const std::uint32_t>> tokens;
  std::uint32_t heads = 1;  // that have lists
  // Of the cache's heads among these: a cache may have one head group only.
  std::uint32_t first_head = 0;
  std::span<const std::uint32_t> pages;
  TokenPlace place = TokenPlace::kOwn;
  std::uint64_t blocks = 0;  // of the chain
};

struct Row {
  std::uint64_t pool_offset;    // in the block
  std::uint64_t engine_offset;  // in the tensor
  std::uint64_t bytes;
  std::uint32_t tensor;
};

class RowPlan {
 public:
  // @errors kInvalidArgument: layers, a number of lists, a token, an order of tokens, a number of pages or a page
  //         id that does not fit
  // @cost   a look at each token and page
  static Result<RowPlan> make(const EngineCache& cache, const BlockOrder& order,
                              const RowChoice& choice, LayerRange layers = {});

  std::uint64_t blocks() const { return choice_.blocks; }
  std::uint64_t padded_block_bytes() const { return padded_block_bytes_; }
  // Of all rows in the chain's first blocks. @cost a binary search in each list
  std::uint64_t copied_bytes(std::uint64_t blocks) const;
  const Plan& arithmetic() const { return plan_; }

 private:
  friend class RowWalk;
  static constexpr std::uint32_t kMostSteps = 3;  // layer, token, head

  RowPlan() = default;
  std::span<const std::uint32_t> list(std::uint32_t layer, std::uint32_t head) const {
    return choice_.tokens[std::size_t{layer} * choice_.heads + choice_.first_head + head];
  }

  Plan plan_;  // of Grain::kRow
  RowChoice choice_;
  std::uint64_t padded_block_bytes_ = 0;
  std::uint32_t layers_ = 0, heads_ = 0;  // chosen layers; heads of the cache
  std::uint32_t block_tokens_ = 0, page_tokens_ = 0;
  // Which step of the plan each is; of a latent, head is none of them
  std::uint32_t layer_step_ = 0, token_step_ = 0, head_step_ = 0;
};

// @threads one
class RowWalk {
 public:
  // @param plan  outlives the walk
  explicit RowWalk(const RowPlan& plan);

  // Calls f(row) for each chosen row of a block.
  // @param number  of the block in the chain, ascending from call to call
  // @cost          a comparison for each list, and some 10 ns for each token; no allocation after the first blocks
  template <class F>
  void for_each_row(std::uint64_t number, F&& f) {
    const Plan& plan = plan_.plan_;
    const std::uint64_t end = (number + 1) * plan_.block_tokens_;
    // Then no list of a later layer has an earlier row.
    const bool is_by_layer =
        plan_.layer_step_ == 0 && (plan.outer_dimensions != 0 || plan.parts == 1);
    for (std::uint32_t layer = 0; layer < plan_.layers_; ++layer) {
      for (std::uint32_t head = 0; head < plan_.heads_; ++head) {
        if (next_[std::size_t{layer} * plan_.heads_ + head].token < end) pick(number, layer, head);
      }
      if (is_by_layer) emit(f);
    }
    if (!is_by_layer) emit(f);
  }

 private:
  // A chosen token of one head in one layer.
  struct Pick {
    std::uint64_t pool_offset;  // of its first part: what picks are sorted by
    std::uint32_t step[RowPlan::kMostSteps];
    std::uint32_t slot;  // which token of the pages it becomes
  };

  void pick(std::uint64_t number, std::uint32_t layer, std::uint32_t head);
  void sort();
  bool share_outer_steps(const Pick& a, const Pick& b) const {
    return std::equal(a.step, a.step + plan_.plan_.outer_dimensions, b.step);
  }

  Row row_of(const Pick& pick, std::uint32_t part) const {
    const Plan& plan = plan_.plan_;
    const PlanPart& strides = plan.part[part];
    const std::uint32_t page = pick.slot / plan_.page_tokens_;
    Row row{strides.pool_offset,
            strides.engine_offset + plan_.choice_.pages[page] * strides.page_stride,
            strides.run_bytes, strides.tensor};
    for (std::uint32_t d = 0; d < plan.dimensions; ++d) {
      const std::uint32_t engine_step =
          d == plan_.token_step_ ? pick.slot - page * plan_.page_tokens_ : pick.step[d];
      row.pool_offset += pick.step[d] * strides.pool_stride[d];
      row.engine_offset += engine_step * strides.engine_stride[d];
      row.tensor += pick.step[d] * plan.dimension[d].tensor_step;
    }
    return row;
  }

  // The rows of the collected picks: keys, then values, of all picks that differ only in steps inside of the part.
  template <class F>
  void emit(F& f) {
    sort();
    for (std::size_t first = 0, last; first < picks_.size(); first = last) {
      last = first + 1;
      while (last < picks_.size() && share_outer_steps(picks_[first], picks_[last])) ++last;
      for (std::uint32_t part = 0; part < plan_.plan_.parts; ++part) {
        for (std::size_t i = first; i < last; ++i) f(row_of(picks_[i], part));
      }
    }
    picks_.clear();
  }

  const RowPlan& plan_;
  // The first token of a list that was not walked over, next to those of the other lists.
  struct Next {
    std::uint64_t token;  // beyond all blocks: there is none
    std::size_t at;
  };
  static Next next_of(std::span<const std::uint32_t> list, std::size_t at) {
    return {at < list.size() ? list[at] : ~std::uint64_t{0}, at};
  }

  std::vector<Next> next_;
  std::vector<Pick> picks_;
};

}  // namespace cachalot::kv
