#include "kv/row_plan.h"

#include <cinttypes>

namespace cachalot::kv {
namespace {

Status check_row_pages(const EngineCache& cache, const RowChoice& choice) {
  const std::uint32_t per_block = cache.pages_per_block();
  const std::size_t given = choice.pages.size();
  if (choice.place == TokenPlace::kOwn &&
      (given / per_block != choice.blocks || given % per_block != 0)) {
    return Error::make(Code::kInvalidArgument,
                       "pages: %zu were given for %" PRIu64 " blocks, expected %u page(s) each",
                       given, choice.blocks, per_block);
  }
  for (const std::uint32_t page : choice.pages) {
    if (page < cache.pages()) continue;
    return Error::make(Code::kInvalidArgument, "page: %u is not below the cache's %u", page,
                       cache.pages());
  }
  return {};
}

Status check_list(std::span<const std::uint32_t> list, std::uint64_t prompt, std::uint32_t layer,
                  std::uint32_t head) {
  for (std::size_t i = 0; i < list.size(); ++i) {
    if (list[i] >= prompt) {
      return Error::make(
          Code::kInvalidArgument,
          "tokens: layer %u, head %u: number %zu is token %u, expected below the %" PRIu64
          " of the blocks",
          layer, head, i, list[i], prompt);
    }
    if (i == 0 || list[i] > list[i - 1]) continue;
    return Error::make(Code::kInvalidArgument,
                       "tokens: layer %u, head %u: token %u comes after token %u, expected "
                       "ascending tokens that differ",
                       layer, head, list[i], list[i - 1]);
  }
  return {};
}

Status check_room(const EngineCache& cache, const RowChoice& choice, std::size_t tokens,
                  std::uint32_t layer, std::uint32_t head) {
  const std::uint64_t each = cache.page_tokens();
  if (choice.place == TokenPlace::kOwn || tokens <= choice.pages.size() * each) return {};
  return Error::make(Code::kInvalidArgument,
                     "pages: %zu of %" PRIu64 " token(s), expected %" PRIu64
                     ": layer %u, head %u has %zu tokens",
                     choice.pages.size(), each, (tokens + each - 1) / each, layer, head, tokens);
}

}  // namespace

Result<RowPlan> RowPlan::make(const EngineCache& cache, const BlockOrder& order,
                              const RowChoice& choice, LayerRange layers) {
  const KvGeometry& g = cache.geometry();
  CACHALOT_TRY_ASSIGN(const CopyPlan copy, CopyPlan::compile(cache, order, layers, Grain::kRow));
  if (layers.last == 0) layers.last = g.layers;
  RowPlan plan;
  plan.plan_ = copy.arithmetic();
  plan.choice_ = choice;
  plan.padded_block_bytes_ = copy.padded_block_bytes();
  plan.layers_ = layers.last - layers.first;
  plan.heads_ = g.heads();
  plan.block_tokens_ = g.block_tokens;
  plan.page_tokens_ = cache.page_tokens();
  std::uint32_t step = 0;
  plan.head_step_ = kMostSteps;
  for (const char* d = order.order(g.attention); *d != '\0'; ++d) {
    if (*d == 'L') plan.layer_step_ = step++;
    if (*d == 'N') plan.token_step_ = step++;
    if (*d == 'H') plan.head_step_ = step++;
  }

  if (choice.tokens.size() != std::uint64_t{plan.layers_} * choice.heads) {
    return Error::make(Code::kInvalidArgument,
                       "tokens: %zu lists, expected %" PRIu64
                       ": one for each of %u layer(s) and %u "
                       "head(s)%s",
                       choice.tokens.size(), std::uint64_t{plan.layers_} * choice.heads,
                       plan.layers_, choice.heads,
                       g.attention == Attention::kLatent ? "; a latent has one head" : "");
  }
  CACHALOT_TRY(check_row_pages(cache, choice));
  for (std::uint32_t layer = 0; layer < plan.layers_; ++layer) {
    for (std::uint32_t head = 0; head < plan.heads_; ++head) {
      const std::span<const std::uint32_t> list = plan.list(layer, head);
      const std::uint32_t of_rank = choice.first_head + head;
      CACHALOT_TRY(check_list(list, choice.blocks * g.block_tokens, layers.first + layer, of_rank));
      CACHALOT_TRY(check_room(cache, choice, list.size(), layers.first + layer, of_rank));
    }
  }
  return plan;
}

std::uint64_t RowPlan::copied_bytes(std::uint64_t blocks) const {
  const std::uint64_t end = blocks * block_tokens_;
  std::uint64_t rows = 0, bytes = 0;
  for (std::uint32_t layer = 0; layer < layers_; ++layer) {
    for (std::uint32_t head = 0; head < heads_; ++head) {
      const std::span<const std::uint32_t> tokens = list(layer, head);
      rows += static_cast<std::uint64_t>(std::lower_bound(tokens.begin(), tokens.end(), end) -
                                         tokens.begin());
    }
  }
  for (std::uint32_t part = 0; part < plan_.parts; ++part) bytes += plan_.part[part].run_bytes;
  return rows * bytes;
}

RowWalk::RowWalk(const RowPlan& plan) : plan_(plan) {
  next_.reserve(std::size_t{plan.layers_} * plan.heads_);
  for (std::uint32_t layer = 0; layer < plan.layers_; ++layer) {
    for (std::uint32_t head = 0; head < plan.heads_; ++head)
      next_.push_back(next_of(plan.list(layer, head), 0));
  }
}

void RowWalk::pick(std::uint64_t number, std::uint32_t layer, std::uint32_t head) {
  const std::span<const std::uint32_t> list = plan_.list(layer, head);
  Next& next = next_[std::size_t{layer} * plan_.heads_ + head];
  const std::uint64_t begin = number * plan_.block_tokens_, end = begin + plan_.block_tokens_;
  std::size_t at = next.at;
  if (next.token < begin) {  // blocks were left out
    const auto first = list.begin() + static_cast<std::ptrdiff_t>(at);
    at = static_cast<std::size_t>(std::lower_bound(first, list.end(), begin) - list.begin());
  }
  const PlanPart& strides = plan_.plan_.part[0];
  for (; at < list.size() && list[at] < end; ++at) {
    Pick pick{};
    pick.step[plan_.layer_step_] = layer;
    pick.step[plan_.token_step_] = static_cast<std::uint32_t>(list[at] - begin);
    if (plan_.head_step_ < RowPlan::kMostSteps) pick.step[plan_.head_step_] = head;
    for (std::uint32_t d = 0; d < plan_.plan_.dimensions; ++d) {
      pick.pool_offset += pick.step[d] * strides.pool_stride[d];
    }
    pick.slot = plan_.choice_.place == TokenPlace::kOwn ? list[at] : static_cast<std::uint32_t>(at);
    picks_.push_back(pick);
  }
  next = next_of(list, at);
}

void RowWalk::sort() {
  const auto is_before = [](const Pick& a, const Pick& b) { return a.pool_offset < b.pool_offset; };
  if (!std::is_sorted(picks_.begin(), picks_.end(), is_before)) {
    std::sort(picks_.begin(), picks_.end(), is_before);
  }
}

}  // namespace cachalot::kv
