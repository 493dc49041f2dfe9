// A cache without bytes: which blocks of each request it would have held, and nothing else.
#pragma once

#include <cachalot/result.h>

#include <cstdint>
#include <memory>
#include <span>
#include <string_view>

#include "index/eviction_policy.h"

namespace cachalot::index {

enum class CacheMode {
  kStream,  // each block is looked up and inserted in order; any block may be evicted
  kLeaf,    // as the pool does: only childless blocks off the request's own path may be evicted; if
            // there is none, the rest of the request is not stored
};

// "stream", "leaf".
const char* cache_mode_name(CacheMode mode);
// @errors kInvalidArgument: neither of them
Result<CacheMode> parse_cache_mode(std::string_view name);

inline constexpr std::uint64_t kUnlimitedBlocks = 0xffffffffffffffffu;

struct CacheSpec {
  PolicyKind policy = PolicyKind::kLru;
  CacheMode mode = CacheMode::kLeaf;
  std::uint64_t capacity_blocks = kUnlimitedBlocks;
};

class CacheModel {
 public:
  struct Hits {
    std::uint64_t blocks = 0;  // resident when looked up
    std::uint64_t prefix = 0;  // the leading run of them
  };

  virtual ~CacheModel() = default;

  // Looks up and stores one request.
  // @shape path: numbers of its blocks, root first, each once and each always below the same
  //        parent; numbers are dense, below kMaxNodes
  virtual Hits access(std::span<const std::uint32_t> path) = 0;
  virtual std::uint64_t resident_blocks() const = 0;
};

// @errors kInvalidArgument: capacity_blocks is 0
Result<std::unique_ptr<CacheModel>> make_cache_model(const CacheSpec& spec);

}  // namespace cachalot::index
