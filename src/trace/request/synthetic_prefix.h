// Block ids for a trace that has none: a stated assumption about which prefixes its requests share, and
// never a measured one.
//
//   1. Every request begins with the same `shared_tokens` tokens, as far as it is long enough.
//   2. With probability `continue_probability` a request continues an earlier one, any of the last
//      kRemembered: it begins with the whole blocks of that one, as far as it is long enough.
//   3. Everything else is met once, also a last block that is partial.
//
// The same seed and the same lengths give the same ids, on every machine.
#pragma once

#include <cachalot/result.h>

#include <cstdint>
#include <deque>
#include <string>
#include <vector>

#include "base/rng.h"
#include "trace/request/request.h"

namespace cachalot::trace {

struct SyntheticPrefix {
  std::uint64_t shared_tokens = 0;
  double continue_probability = 0;
  std::uint64_t seed = 1;
};

// "shared=1024,continue=0.5,seed=7", each part once at most. @errors kInvalidArgument
Result<SyntheticPrefix> parse_synthetic_prefix(const std::string& text);

class PrefixSynthesizer {
 public:
  static constexpr std::size_t kRemembered = 1024;

  PrefixSynthesizer(const SyntheticPrefix& prefix, std::uint64_t block_tokens)
      : prefix_(prefix), block_tokens_(block_tokens), rng_(prefix.seed) {}

  // Replaces hash_ids: ceil(input_tokens / block_tokens) of them.
  // @errors kBadInput: an input of more than 2^24 blocks
  Status apply(Request& request);

 private:
  SyntheticPrefix prefix_;
  std::uint64_t block_tokens_;
  base::Rng rng_;
  std::uint64_t next_id_ = 0;
  std::vector<std::uint64_t> shared_;               // ids of the common beginning
  std::deque<std::vector<std::uint64_t>> earlier_;  // ids of whole blocks
};

}  // namespace cachalot::trace
