// Replays a request trace through the tiers of one engine (cachalot/tier.h), with real bytes: each block of the trace
// is a block of the cache, is filled when it is computed, and is compared when it is found.
#pragma once

#include <cachalot/tier.h>

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "cache_sim/chain_numbers.h"

namespace cachalot::replay {

struct TierReplayOptions {
  std::uint64_t block_bytes = 16384;  // a multiple of 32
  std::uint32_t device_blocks = 0;    // L1
  std::uint32_t host_blocks = 0;      // L2; 0: none
  bool exclusive = false;
  TierWrites writes = TierWrites::kThrough;
  std::string order = "lru";         // of eviction, in both tiers
  std::uint64_t block_tokens = 512;  // of the trace, for token_hit_rate
};

struct TierReplayCounts {
  std::uint64_t requests = 0, blocks = 0;
  std::uint64_t device_hits = 0, host_hits = 0;  // blocks
  std::uint64_t hit_tokens = 0, input_tokens = 0;
  std::uint64_t verified_bytes = 0, wrong_words = 0;
  std::uint64_t skipped_requests = 0;  // larger than L1
  TierStatistics tiers = {};

  double token_hit_rate() const {
    return input_tokens == 0 ? 0
                             : static_cast<double>(hit_tokens) / static_cast<double>(input_tokens);
  }
};

// @threads one at a time
class TierReplay {
 public:
  // @errors as TieredCache::make; kInvalidArgument: block_bytes
  static Result<TierReplay> make(const TierReplayOptions& options);

  // Serves one request, and waits until its blocks are where they belong.
  // @errors kUnsupported: more distinct blocks than numbers; as TieredCache
  Status add(std::span<const std::uint64_t> ids, std::uint64_t input_tokens);
  TierReplayCounts counts() const;

 private:
  struct Memory {  // L1, a tensor a layer
    std::vector<std::vector<std::byte>> layers;
  };
  TierReplay(const TierReplayOptions& options, std::unique_ptr<Memory> memory, TieredCache cache);
  void verify(std::uint32_t block, PageId page);
  void compute(std::uint32_t block, PageId page);

  TierReplayOptions options_;
  std::unique_ptr<Memory> memory_;
  TieredCache cache_;
  cache_sim::ChainNumbers numbers_;
  std::vector<std::uint32_t> path_;
  TierReplayCounts counts_;
};

}  // namespace cachalot::replay
