// The hit rate of a request trace for policies and capacities, all in one pass over it.
//
// Requests come one by one, so a trace may be larger than memory; memory grows with the number of
// distinct blocks: 24 to 48 bytes each, and for each row 4 bytes each and 20 bytes for each block it
// may hold.
// A block is its whole prefix: ids are numbered by (parent's number, id), so that an id met below
// two parents is two blocks, as it must be in a prefix cache.
#pragma once

#include <cachalot/result.h>

#include <cstdint>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "index/cache_model.h"
#include "index/chain_numbers.h"

namespace cachalot::index {

struct HitRateRow {
  CacheSpec cache;
  // Blocks that were resident when looked up, and those of them in the leading run of their
  // request, which is what a prefix cache can use.
  std::uint64_t hit_blocks = 0;
  std::uint64_t prefix_blocks = 0;
  // Of all blocks, and of all input tokens: sum of min(prefix blocks * block_tokens, input tokens)
  // over sum of input tokens. 0 for an empty trace.
  double hit_rate = 0;
  double prefix_hit_rate = 0;
  double token_hit_rate = 0;
};

// @threads one at a time
class HitRate {
 public:
  // One row for each cache. block_tokens > 0.
  // @errors kInvalidArgument: no cache, capacity or block_tokens 0
  static Result<HitRate> make(std::span<const CacheSpec> caches, std::uint64_t block_tokens);

  // Looks a request up and stores it, in every row.
  // @errors kUnsupported: more than 2^32 - 2 distinct blocks; kBadInput: the sum of input_tokens
  //         exceeds 64 bits. The request is not counted.
  // @cost   about 40 ns a block and row (cold caches included)
  Status add(std::span<const std::uint64_t> ids, std::uint64_t input_tokens);

  std::uint64_t requests() const { return requests_; }
  std::uint64_t blocks_total() const { return blocks_total_; }
  std::uint64_t blocks_unique() const { return numbers_.size(); }
  std::vector<HitRateRow> rows() const;

 private:
  struct Row {
    CacheSpec spec;
    std::unique_ptr<CacheModel> cache;
    std::uint64_t hit_blocks = 0;
    std::uint64_t prefix_blocks = 0;
    std::uint64_t hit_tokens = 0;
  };

  explicit HitRate(std::uint64_t block_tokens) : block_tokens_(block_tokens) {}

  std::uint64_t block_tokens_;
  std::uint64_t requests_ = 0;
  std::uint64_t blocks_total_ = 0;
  std::uint64_t input_tokens_ = 0;
  ChainNumbers numbers_;
  std::vector<std::uint32_t> path_;  // the request in hand, as numbers
  std::vector<Row> rows_;
};

}  // namespace cachalot::index
