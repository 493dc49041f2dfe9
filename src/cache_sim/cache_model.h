// A cache without bytes: which blocks of each request it would have held, and nothing else.
#pragma once

#include <cachalot/result.h>

#include <cstdint>
#include <memory>
#include <span>

#include "eviction/policy_kind.h"

namespace cachalot::cache_sim {

inline constexpr std::uint64_t kUnlimitedBlocks = 0xffffffffffffffffu;

struct CacheSpec {
  eviction::PolicyKind policy = eviction::PolicyKind::kLru;
  eviction::CacheMode mode = eviction::CacheMode::kLeaf;
  std::uint64_t capacity_blocks = kUnlimitedBlocks;
};

// @threads one at a time
class CacheModel {
 public:
  struct Hits {
    std::uint64_t blocks = 0;  // resident when looked up
    std::uint64_t prefix = 0;  // the leading run of them
  };

  virtual ~CacheModel() = default;

  // Looks up and stores one request.
  // @shape path: numbers of its blocks, root first, each once and each always below the same
  //        parent; numbers are dense, below 2^32 - 512
  virtual Hits access(std::span<const std::uint32_t> path) = 0;
  virtual std::uint64_t resident_blocks() const = 0;
};

// @errors kInvalidArgument: capacity_blocks is 0; the policy has no such mode, or is not online
Result<std::unique_ptr<CacheModel>> make_cache_model(const CacheSpec& spec);

// kInvalidArgument where make_cache_model() and Belady have no such cache.
Status check_cache(const CacheSpec& spec);

}  // namespace cachalot::cache_sim
