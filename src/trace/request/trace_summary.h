// What a trace has in it: how much, when, how long, and how much of it a cache without limit would hit.
//
// A block is its whole prefix: an id below two parents counts as two blocks, and once as inconsistent,
// for ids that stand for prefixes have one parent each.
//
// Ideal rates, of a prefix cache that forgets nothing and is looked up before a request is stored, with
// `hit` the leading blocks of a request that were met before and B tokens a block:
//   block        sum of hit / sum of blocks
//   token        sum of min(hit * B, input) / sum of input
//   full_block   sum of min(hit, floor(input / B)) / sum of floor(input / B)
//   mean_token   the mean over requests of min(hit * B, input) / input
#pragma once

#include <cachalot/result.h>

#include <cstdint>
#include <vector>

#include "base/pair_table.h"
#include "trace/request/request.h"

namespace cachalot::trace {

struct Lengths {
  std::uint64_t total = 0;
  double mean = 0;
  std::uint64_t p50 = 0, p90 = 0, p99 = 0,
                max = 0;  // the smallest value that so many percent do not exceed
};

struct IdealRates {
  std::uint64_t hit_blocks = 0;
  double block = 0, token = 0, full_block = 0, mean_token = 0;
};

// @threads one at a time
// @cost    16 bytes a request and 24 to 32 a distinct block; 50 to 200 ns a block
class TraceSummary {
 public:
  explicit TraceSummary(std::uint64_t block_tokens) : block_tokens_(block_tokens) {}

  // @errors kBadInput: lengths that do not add up in 64 bits; the request is not counted
  Status add(const Request& request);

  std::uint64_t requests() const { return inputs_.size(); }
  double first_ms() const { return first_ms_; }
  double last_ms() const { return last_ms_; }
  Lengths input_tokens() const { return lengths_of(inputs_, total_input_); }
  Lengths output_tokens() const { return lengths_of(outputs_, total_output_); }
  std::uint64_t blocks_total() const { return blocks_total_; }
  std::uint64_t blocks_unique() const { return blocks_.pairs().size(); }
  IdealRates ideal() const;
  // Ids that were met below more than one parent. @cost sorts the ids
  std::uint64_t inconsistent_ids() const;

 private:
  static Lengths lengths_of(std::vector<std::uint64_t> values, std::uint64_t total);
  std::uint64_t store(const std::vector<std::uint64_t>& ids);

  std::uint64_t block_tokens_;
  double first_ms_ = 0, last_ms_ = 0;
  std::vector<std::uint64_t> inputs_, outputs_;
  std::uint64_t total_input_ = 0, total_output_ = 0;
  PairTable blocks_;  // (number of the parent + 1 or 0, id)
  std::uint64_t blocks_total_ = 0, full_blocks_ = 0;
  std::uint64_t hit_blocks_ = 0, hit_full_blocks_ = 0, hit_tokens_ = 0;
  std::uint64_t nonempty_requests_ = 0;
  double sum_of_token_rates_ = 0;
};

}  // namespace cachalot::trace
