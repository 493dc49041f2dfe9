// The blocks that an instance or the shared pool holds: a tree of prefixes with the eviction code that pools run.
//
// 1. A block is held only with its whole prefix.
// 2. Never more blocks than the capacity; if nothing can be evicted, the rest of a path is not stored.
// 3. A path that is in use is not evicted.
#pragma once

#include <cstdint>
#include <memory>
#include <span>

#include "cache_sim/stream/block_nodes.h"
#include "eviction/eviction_policy.h"
#include "eviction/wrappers/copies_first.h"

namespace cachalot::sim {

// @threads one at a time
class PrefixCache {
 public:
  // @param kind         must have a leaf mode
  // @param copies_first  what store_copies() stores is evicted first (eviction/wrappers/copies_first.h)
  PrefixCache(eviction::PolicyKind kind, std::uint64_t capacity_blocks, bool copies_first = false)
      : capacity_(capacity_blocks), kind_(kind), copies_first_(copies_first) {
    make_policy();
  }

  // How many leading blocks it holds. Not a use. O(blocks)
  std::size_t match(std::span<const std::uint32_t> path) const;

  // A use of the path's held prefix, and as much of the rest as there is room for. Returns how many blocks of the
  // path are held now.
  std::size_t store(std::span<const std::uint32_t> path) { return store(path, false); }
  // The same of blocks that another cache has, too.
  std::size_t store_copies(std::span<const std::uint32_t> path) { return store(path, true); }

  // A use of the path's held prefix alone.
  void use(std::span<const std::uint32_t> path) { store(path.first(match(path))); }

  // The prefix that `path` is, held whole, is not evicted until release() of the same. An empty path is none.
  void hold(std::span<const std::uint32_t> path);
  void release(std::span<const std::uint32_t> path);

  // Drops all blocks, and forgets holds.
  void clear();

  std::uint64_t capacity_blocks() const { return capacity_; }
  std::uint64_t size() const { return nodes_.size(); }
  std::uint64_t evictions() const { return evictions_; }
  // Grows with each clear(): a hold from before it is not to be released.
  std::uint64_t generation() const { return generation_; }

 private:
  void make_policy();
  std::size_t store(std::span<const std::uint32_t> path, bool are_copies);
  bool make_room(eviction::NodeId tail);

  std::uint64_t capacity_;
  eviction::PolicyKind kind_;
  bool copies_first_;
  cache_sim::BlockNodes nodes_;
  std::unique_ptr<eviction::EvictionPolicy> policy_;
  eviction::CopiesFirst* copies_ = nullptr;  // policy_, where copies go first
  std::uint64_t evictions_ = 0;
  std::uint64_t generation_ = 0;
};

}  // namespace cachalot::sim
