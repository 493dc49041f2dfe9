// Several traces as one: requests by time, ids that mean the same blocks, blocks of one size.
//
// Among requests of equal times those of the trace that was named first come first; the order within a
// trace stays, even where its times go back.
//
// Ids stay what they are where one trace is read, or none has ids of its own scope (Dynamo's, Mooncake's).
// Else all get new ones, 0, 1, 2 … in the order in which they are met: equal local ids of two traces
// become different, equal global ones stay equal.
//
// A larger block has the id of the last small one in it, which stands for the whole prefix; a last block
// that is partial likewise.
#pragma once

#include <cachalot/result.h>

#include <cstdint>
#include <vector>

#include "base/pair_table.h"
#include "trace/request/request_trace.h"

namespace cachalot::trace {

// Makes larger blocks of a request's: each of `blocks_in_one`, the last one of what is left.
void join_blocks(std::uint64_t blocks_in_one, std::vector<std::uint64_t>& ids);

struct MergeOptions {
  std::uint64_t block_tokens = 0;  // a multiple of each trace's; 0: theirs, which must be the same
  bool renumber = false;           // also where ids could stay
};

// @threads one at a time
class TraceMerge {
 public:
  // @param  traces  at least one, from their beginnings
  // @errors kInvalidArgument: block sizes that do not fit; a trace without ids; as RequestTrace::next
  static Result<TraceMerge> make(std::vector<RequestTrace> traces, const MergeOptions& options);

  // As RequestTrace::next().
  Result<bool> next(Request& request);

  std::uint64_t block_tokens() const { return block_tokens_; }
  bool renumbers() const { return renumbers_; }
  std::uint64_t skipped_lines() const;

 private:
  struct Input {
    RequestTrace trace;
    std::uint64_t blocks_in_one;  // small ones in a larger one
    std::uint64_t scope;          // of its ids
    Request ahead;
    bool has_more;
  };

  TraceMerge() = default;
  void convert(const Input& input, std::vector<std::uint64_t>& ids);

  std::vector<Input> inputs_;
  std::uint64_t block_tokens_ = 0;
  bool renumbers_ = false;
  PairTable numbers_;  // (scope, id)
};

}  // namespace cachalot::trace
