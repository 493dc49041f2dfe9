// The lengths, arrivals and block ids of a trace's requests, in memory: what KV memory depends on.
//
// @cost  32 bytes a request, and 8 for each id
#pragma once

#include <cachalot/result.h>

#include <cstdint>
#include <span>
#include <vector>

#include "trace/request/request_trace.h"

namespace cachalot::replay {

class KvRequests {
 public:
  // @param with_ids  else the ids are left out
  // @param limit     at most so many requests; 0: all
  // @errors as RequestTrace::next; kBadInput: a request's lengths do not add up in 64 bits
  static Result<KvRequests> read(trace::RequestTrace& trace, bool with_ids, std::uint64_t limit);

  std::size_t size() const { return requests_.size(); }
  std::uint64_t input_tokens(std::size_t i) const { return requests_[i].input_tokens; }
  std::uint64_t total_tokens(std::size_t i) const { return requests_[i].total_tokens; }
  // Since the first request; never below that of the request in front.
  double arrival_ms(std::size_t i) const { return requests_[i].arrival_ms; }
  // Of the whole blocks of the input.
  std::span<const std::uint64_t> ids(std::size_t i) const {
    const std::size_t begin = i == 0 ? 0 : requests_[i - 1].ids_end;
    return std::span(ids_).subspan(begin, requests_[i].ids_end - begin);
  }
  std::uint64_t longest_tokens() const { return longest_tokens_; }
  // Whether a request has a token at least, and at most so many.
  bool has_any_within(std::uint64_t tokens) const;

 private:
  struct Lengths {
    std::uint64_t input_tokens = 0, total_tokens = 0;
    double arrival_ms = 0;
    std::size_t ids_end = 0;
  };
  std::vector<Lengths> requests_;
  std::vector<std::uint64_t> ids_;
  std::uint64_t longest_tokens_ = 0;
};

}  // namespace cachalot::replay
