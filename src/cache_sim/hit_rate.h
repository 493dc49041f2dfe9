// The hit rate of a request trace for policies and capacities, all in one pass over it.
//
// Requests come one by one, so a trace may be larger than memory; memory grows with the number of
// distinct blocks: 24 to 48 bytes each, and for each row 4 bytes each and what its policy takes for a
// block it may hold. Rows of opt look ahead: for them the references are logged in a file.
// A block is its whole prefix: ids are numbered by (parent's number, id), so that an id met below
// two parents is two blocks, as it must be in a prefix cache.
#pragma once

#include <cachalot/result.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "cache_sim/belady.h"
#include "cache_sim/cache_model.h"
#include "cache_sim/chain_numbers.h"
#include "cache_sim/reuse.h"

namespace cachalot::cache_sim {

struct HitRateRow {
  CacheSpec cache;
  // Blocks that were resident when looked up, and those of them in the leading run of their
  // request, which is what a prefix cache can use.
  std::uint64_t hit_blocks = 0;
  std::uint64_t prefix_blocks = 0;
  // The sum of min(prefix blocks * block_tokens, input tokens), and of input tokens.
  std::uint64_t hit_tokens = 0;
  std::uint64_t tokens = 0;
  // Of all blocks, and of all tokens. 0 for an empty trace.
  double hit_rate = 0;
  double prefix_hit_rate = 0;
  double token_hit_rate = 0;
};

struct HitRateOptions {
  std::uint64_t block_tokens = 512;
  // The first requests are stored but not counted in rows.
  std::uint64_t warmup_requests = 0;
  // reuse distances and working sets beside the rows: 12 to 28 bytes a block
  bool with_reuse = false;
  std::string spill_directory = "/tmp";  // for a row of opt: 8 bytes a reference, 16 a request
};

// @threads one at a time
class HitRate {
 public:
  // One row for each cache.
  // @errors kInvalidArgument: no cache, capacity or block_tokens 0, or a policy without the mode;
  //         as SpillFile::make for a row of opt
  static Result<HitRate> make(std::span<const CacheSpec> caches, const HitRateOptions& options);

  // Looks a request up and stores it, in every row.
  // @errors kUnsupported: more distinct blocks than numbers; kBadInput: the sum of input_tokens
  //         exceeds 64 bits. The request is not counted. As Belady::add for a row of opt, after which
  //         the object is good for nothing.
  Status add(std::span<const std::uint64_t> ids, std::uint64_t input_tokens,
             double timestamp_ms = 0);

  // Computes the rows of opt, after the last add(). `on_row` is called before each.
  // @errors as Belady::look_ahead
  Status finish(const std::function<void(const CacheSpec&)>& on_row = {});

  std::uint64_t requests() const { return requests_; }
  std::uint64_t blocks_total() const { return blocks_total_; }
  std::uint64_t blocks_unique() const { return numbers_.size(); }
  std::vector<HitRateRow> rows() const;

  // Null without HitRateOptions::with_reuse.
  const ReuseDistances* reuse() const { return reuse_ ? &*reuse_ : nullptr; }
  // Over a minute, ten, and an hour; empty likewise.
  std::span<const WorkingSet> working_sets() const { return working_sets_; }

 private:
  struct Row {
    CacheSpec spec;
    std::unique_ptr<CacheModel> cache;  // none for opt
    std::uint64_t hit_blocks = 0;
    std::uint64_t prefix_blocks = 0;
    std::uint64_t hit_tokens = 0;
  };

  explicit HitRate(const HitRateOptions& options)
      : block_tokens_(options.block_tokens), warmup_requests_(options.warmup_requests) {}

  std::uint64_t block_tokens_;
  std::uint64_t warmup_requests_;
  std::uint64_t requests_ = 0;
  std::uint64_t blocks_total_ = 0;
  std::uint64_t input_tokens_ = 0;
  std::uint64_t counted_blocks_ = 0, counted_tokens_ = 0;  // without the warm-up
  ChainNumbers numbers_;
  std::vector<std::uint32_t> path_;  // the request in hand, as numbers
  std::vector<Row> rows_;
  std::optional<Belady> opt_;
  std::optional<ReuseDistances> reuse_;
  std::vector<WorkingSet> working_sets_;
};

}  // namespace cachalot::cache_sim
