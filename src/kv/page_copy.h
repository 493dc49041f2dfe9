// Copies blocks between two paged caches of one geometry and any layouts: an engine's cache in memory of the
// device, and host memory behind it.
//
// Dimensions that are contiguous on both sides are merged, so equal orders of heads and tokens give one copy a
// layer and part.
#pragma once

#include <cachalot/result.h>

#include <cstdint>
#include <span>

#include "kv/engine_cache.h"
#include "kv/plan.h"

namespace cachalot::kv {

// A block of each cache: pages [block * pages_per_block, (block + 1) * pages_per_block).
struct PagePair {
  std::uint32_t from = 0;
  std::uint32_t to = 0;
};

// @threads any number may use one object
class PageCopy {
 public:
  // @param from, to  outlive the object; both in this process's memory
  // @errors kInvalidArgument: the geometries differ
  static Result<PageCopy> make(const EngineCache& from, const EngineCache& to);

  // @shape  blocks of both caches are in range
  // @cost   reads and writes each byte once; no allocation
  void copy(std::span<const PagePair> blocks, LayerRange layers = {}) const;
  std::uint64_t layer_bytes() const { return from_->geometry().layer_bytes(); }

 private:
  PageCopy(const EngineCache& from, const EngineCache& to) : from_(&from), to_(&to) {}
  void copy_part(std::uint32_t part, std::uint32_t layer, const PagePair& block) const;

  const EngineCache* from_;
  const EngineCache* to_;
};

}  // namespace cachalot::kv
