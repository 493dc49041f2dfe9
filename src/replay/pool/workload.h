// A whole trace in flat arrays, its blocks as chained hashes: read once, before the processes that
// replay it are forked, and inherited by all of them.
#pragma once

#include <cachalot/result.h>

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "block_hash/block_hash.h"
#include "replay/pool/options.h"

namespace cachalot::replay {

class Workload {
 public:
  // Reads the trace (at most options.limit_requests of it) and hashes it for `fingerprint`.
  // @errors as trace::RequestTrace; kBadInput: the input lengths do not add up in 64 bits
  // @cost   16 bytes a block and 24 a request; about 40 ns a block beside the reading
  static Result<Workload> load(const ReplayOptions& options);

  std::size_t requests() const { return input_tokens_.size(); }
  std::uint64_t blocks() const { return hashes_.size(); }
  std::uint64_t input_tokens() const { return total_tokens_; }
  std::uint64_t skipped_lines() const { return skipped_lines_; }

  std::span<const BlockHash> hashes(std::size_t request) const {
    return std::span(hashes_).subspan(first_block_[request],
                                      first_block_[request + 1] - first_block_[request]);
  }
  std::uint64_t input_tokens(std::size_t request) const { return input_tokens_[request]; }
  // Since the first request, in the trace's own time; never below 0.
  std::uint64_t arrival_ns(std::size_t request) const { return arrival_ns_[request]; }

 private:
  std::vector<BlockHash> hashes_;
  std::vector<std::uint64_t> first_block_{0};
  std::vector<std::uint64_t> input_tokens_;
  std::vector<std::uint64_t> arrival_ns_;
  std::uint64_t total_tokens_ = 0;
  std::uint64_t skipped_lines_ = 0;
};

}  // namespace cachalot::replay
