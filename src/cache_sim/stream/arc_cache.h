// ARC: two LRU lists, of blocks met once (T1) and more often (T2), each with a ghost (B1, B2), and a
// target for the size of T1 that hits of the ghosts move.
//
// 1. |T1| + |T2| <= c; |T1| + |B1| <= c; all four together <= 2c.
// @source Megiddo, Modha: ARC: A Self-Tuning, Low Overhead Replacement Cache, FAST 2003, figure 4
#pragma once

#include "cache_sim/stream/block_nodes.h"
#include "cache_sim/stream/stream_cache.h"
#include "eviction/structure/node_lists.h"

namespace cachalot::cache_sim {

// @cost O(1); 9 bytes a block that is resident or a ghost, beside BlockNodes
class ArcCache final : public StreamCache {
 public:
  explicit ArcCache(std::uint64_t capacity_blocks) : capacity_(capacity_blocks) {}

  bool access(std::uint32_t block, std::uint32_t place) override;
  std::uint64_t resident_blocks() const override {
    return std::uint64_t{lists_.size(kT1)} + lists_.size(kT2);
  }
  void prefetch(std::uint32_t block) const override { nodes_.prefetch(block); }

 private:
  enum List : std::uint32_t { kT1, kT2, kB1, kB2, kLists };

  void replace(bool is_in_b2);
  void drop_oldest(List list);
  double size(List list) const { return lists_.size(list); }

  std::uint64_t capacity_;
  double target_ = 0;  // of |T1|: p in the paper, a real number there
  BlockNodes nodes_;
  eviction::NodeLists<kLists> lists_;
};

}  // namespace cachalot::cache_sim
