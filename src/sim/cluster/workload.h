// The requests of a simulation, in the order of their arrival, with their prefixes as dense numbers.
#pragma once

#include <cachalot/result.h>

#include <cstdint>
#include <span>
#include <vector>

#include "cache_sim/chain_numbers.h"

namespace cachalot::sim {

struct Job {
  double arrival_s = 0;
  std::uint64_t input_tokens = 0;
  std::uint64_t output_tokens = 0;
  std::uint64_t first_block = 0;  // of its path
  std::uint32_t blocks = 0;
};

// @threads one at a time; any after finish()
class Workload {
 public:
  explicit Workload(std::uint64_t block_tokens) : block_tokens_(block_tokens) {}

  // @param  ids  of its blocks, each standing for the whole prefix or for its content; prefixes are told apart
  // @errors kBadInput: a time that is not finite; more tokens than 2^40 in a request; kUnsupported: too many
  //         distinct blocks
  Status add(std::span<const std::uint64_t> ids, std::uint64_t input_tokens,
             std::uint64_t output_tokens, double timestamp_ms);

  // Once, after the last add(): orders by time, the first one at 0, and divides times by `rate_scale`.
  // @errors kBadInput: no request; more than 2^32 s between the first and the last one
  Status finish(double rate_scale);

  // After finish(): divides times by `rate_scale`, which is above 0.
  void rescale(double rate_scale);

  // Once, after finish(): the requests come `passes` times, the same in each pass, one pass after the other.
  void repeat(std::uint64_t passes);

  std::uint64_t block_tokens() const { return block_tokens_; }
  std::uint32_t distinct_blocks() const { return numbers_.size(); }
  std::span<const Job> jobs() const { return jobs_; }
  std::span<const std::uint32_t> path(const Job& job) const {
    return std::span(blocks_).subspan(job.first_block, job.blocks);
  }
  // min(blocks * block_tokens, input)
  std::uint64_t tokens_of(const Job& job, std::size_t blocks) const;

 private:
  std::uint64_t block_tokens_;
  cache_sim::ChainNumbers numbers_;
  std::vector<Job> jobs_;
  std::vector<std::uint32_t> blocks_;
};

}  // namespace cachalot::sim
