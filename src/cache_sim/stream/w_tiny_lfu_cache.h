// W-TinyLFU: a small window for what is new, and a main cache that lets a block in only if it was asked
// for more often than the one it would drive out.
//
// Window: LRU, a hundredth of the capacity. Main: a segmented LRU, four fifths of it protected. Counts
// are exact here, one for each distinct block. After ten references for each block of the capacity all of
// them are halved, and so is the number of references that was counted: the next time is after five more.
// @source Einziger, Friedman, Manes: TinyLFU: A Highly Efficient Cache Admission Policy, ACM ToS 2017
#pragma once

#include "cache_sim/stream/block_nodes.h"
#include "cache_sim/stream/stream_cache.h"
#include "eviction/structure/node_lists.h"

namespace cachalot::cache_sim {

// @cost O(1); 9 bytes a resident block beside BlockNodes, and 8 bytes a distinct block of the trace
class WTinyLfuCache final : public StreamCache {
 public:
  explicit WTinyLfuCache(std::uint64_t capacity_blocks);

  bool access(std::uint32_t block, std::uint32_t place) override;
  std::uint64_t resident_blocks() const override { return nodes_.size(); }
  void prefetch(std::uint32_t block) const override { nodes_.prefetch(block); }

 private:
  enum Segment : std::uint32_t { kWindow, kProbation, kProtected, kSegments };

  // Halved lazily: what an age of the counts behind means is known when it is read.
  struct Count {
    std::uint32_t uses = 0;
    std::uint32_t age = 0;
  };

  void count(std::uint32_t block);
  std::uint32_t uses(std::uint32_t block) const;
  void promote(eviction::NodeId node);
  void leave_window();
  void drop(eviction::NodeId node);

  std::uint64_t window_capacity_, main_capacity_, protected_capacity_, references_per_age_;
  std::uint64_t references_ = 0;
  std::uint32_t age_ = 0;
  BlockNodes nodes_;
  eviction::NodeLists<kSegments> segments_;
  base::HugeVector<Count> counts_;  // of a block
};

}  // namespace cachalot::cache_sim
