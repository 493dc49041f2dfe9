#include "cache_sim/hit_rate.h"

#include "cache_sim/hit_tokens.h"

namespace cachalot::cache_sim {
namespace {

double ratio(std::uint64_t part, std::uint64_t whole) {
  return whole == 0 ? 0 : static_cast<double>(part) / static_cast<double>(whole);
}

}  // namespace

Result<HitRate> HitRate::make(std::span<const CacheSpec> caches, const HitRateOptions& options) {
  if (options.block_tokens == 0) {
    return Error::make(Code::kInvalidArgument, "block_tokens: 0, expected at least 1");
  }
  if (caches.empty()) {
    return Error::make(Code::kInvalidArgument, "caches: none, expected at least one");
  }
  HitRate result(options);
  if (options.with_reuse) {
    constexpr std::uint64_t kMinuteMs = 60'000;
    result.reuse_.emplace();
    for (const std::uint64_t minutes : {1, 10, 60}) {
      result.working_sets_.emplace_back(minutes * kMinuteMs);
    }
  }
  for (const CacheSpec& spec : caches) {
    CACHALOT_TRY(check_cache(spec));
    std::unique_ptr<CacheModel> cache;
    if (spec.policy != eviction::PolicyKind::kOpt) {
      CACHALOT_TRY_ASSIGN(cache, make_cache_model(spec));
    } else if (!result.opt_) {
      CACHALOT_TRY_ASSIGN(result.opt_, Belady::make(options.spill_directory));
    }
    result.rows_.push_back(Row{spec, std::move(cache)});
  }
  return result;
}

Status HitRate::add(std::span<const std::uint64_t> ids, std::uint64_t input_tokens,
                    double timestamp_ms) {
  std::uint64_t input_tokens_sum = 0;
  if (__builtin_add_overflow(input_tokens_, input_tokens, &input_tokens_sum)) {
    return Error::make(Code::kBadInput,
                       "input_length: the sum of all requests exceeds 2^64 tokens");
  }
  for (const std::uint64_t id : ids) numbers_.prefetch(id);
  path_.clear();
  CACHALOT_TRY(numbers_.append_path(ids, path_));
  if (opt_) CACHALOT_TRY(opt_->add(path_, input_tokens));
  if (reuse_) {
    for (const std::uint32_t block : path_) {
      reuse_->add(block);
      for (WorkingSet& set : working_sets_) set.add(block, timestamp_ms);
    }
  }
  const bool is_warmup = requests_ < warmup_requests_;
  for (Row& row : rows_) {
    if (row.cache == nullptr) continue;
    const CacheModel::Hits hits = row.cache->access(path_);
    if (is_warmup) continue;
    row.hit_blocks += hits.blocks;
    row.prefix_blocks += hits.prefix;
    // No overflow: never more than input_tokens, whose sum was checked.
    row.hit_tokens += hit_tokens(hits.prefix, block_tokens_, input_tokens);
  }
  ++requests_;
  blocks_total_ += ids.size();
  input_tokens_ = input_tokens_sum;
  if (!is_warmup) {
    counted_blocks_ += ids.size();
    counted_tokens_ += input_tokens;
  }
  return {};
}

Status HitRate::finish(const std::function<void(const CacheSpec&)>& on_row) {
  if (!opt_) return {};
  CACHALOT_TRY(opt_->look_ahead(numbers_.size()));
  for (Row& row : rows_) {
    if (row.cache != nullptr) continue;
    if (on_row) on_row(row.spec);
    const Belady::Hits hits = opt_->hits(row.spec.capacity_blocks, block_tokens_, warmup_requests_);
    row.hit_blocks = hits.blocks;
    row.prefix_blocks = hits.prefix;
    row.hit_tokens = hits.tokens;
  }
  return {};
}

std::vector<HitRateRow> HitRate::rows() const {
  std::vector<HitRateRow> rows;
  rows.reserve(rows_.size());
  for (const Row& row : rows_) {
    rows.push_back(HitRateRow{
        .cache = row.spec,
        .hit_blocks = row.hit_blocks,
        .prefix_blocks = row.prefix_blocks,
        .hit_tokens = row.hit_tokens,
        .tokens = counted_tokens_,
        .hit_rate = ratio(row.hit_blocks, counted_blocks_),
        .prefix_hit_rate = ratio(row.prefix_blocks, counted_blocks_),
        .token_hit_rate = ratio(row.hit_tokens, counted_tokens_),
    });
  }
  return rows;
}

}  // namespace cachalot::cache_sim
