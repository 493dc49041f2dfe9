// A cache without bytes in which each block stands for itself: looked up and stored one by one, any of
// them may go. What the literature on caching calls a cache; a prefix cache is a tree (eviction/).
#pragma once

#include <cstdint>
#include <memory>

#include "eviction/policy_kind.h"

namespace cachalot::cache_sim {

// @threads one at a time
class StreamCache {
 public:
  virtual ~StreamCache() = default;

  // Looks a block up and stores it if it was not there; whether it was.
  // @shape block: dense numbers, below 2^32 - 512; place: where in its request it stands, from 0
  virtual bool access(std::uint32_t block, std::uint32_t place) = 0;

  // Never more than the capacity.
  virtual std::uint64_t resident_blocks() const = 0;

  // A block that will be asked for soon.
  virtual void prefetch(std::uint32_t block) const = 0;
};

// `kind` must have a stream mode and be online; capacity_blocks > 0.
std::unique_ptr<StreamCache> make_stream_cache(eviction::PolicyKind kind,
                                               std::uint64_t capacity_blocks);

}  // namespace cachalot::cache_sim
