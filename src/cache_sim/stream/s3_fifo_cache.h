// S3-FIFO: what is asked for once passes through a small queue; the rest lives in a main one.
//
// Three queues: small (a tenth of the capacity), main (the rest), and a ghost of names that were dropped
// from small (the capacity less a tenth, rounded down). A hit only counts, up to three. What leaves small goes to main
// if it was hit at least twice there, else to the ghost; what leaves main goes round again, one count
// lower, if it has any. A block whose name is in the ghost is stored in main.
// The cache fills up through small, which is larger than its share until main has grown into its own.
// @source Yang, Zhang, Qiu, Yue, Vinayak: FIFO Queues are All You Need for Cache Eviction, SOSP 2023;
//         threshold and sizes as libCacheSim has them
#pragma once

#include "cache_sim/stream/block_nodes.h"
#include "cache_sim/stream/stream_cache.h"
#include "eviction/structure/node_lists.h"

namespace cachalot::cache_sim {

// @cost O(1) amortised: a block goes round at most three times a hit; 10 bytes a block that is resident
//       or a ghost, beside BlockNodes
class S3FifoCache final : public StreamCache {
 public:
  explicit S3FifoCache(std::uint64_t capacity_blocks);

  bool access(std::uint32_t block, std::uint32_t place) override;
  std::uint64_t resident_blocks() const override {
    return std::uint64_t{queues_.size(kSmall)} + queues_.size(kMain);
  }
  void prefetch(std::uint32_t block) const override { nodes_.prefetch(block); }

 private:
  enum Queue : std::uint32_t { kSmall, kMain, kGhost, kQueues };
  static constexpr std::uint8_t kMostHits = 3, kHitsForMain = 2;

  void evict();
  bool evict_from_small();
  bool evict_from_main();
  void become_ghost(eviction::NodeId node);

  std::uint64_t capacity_, main_capacity_, ghost_capacity_;
  BlockNodes nodes_;
  eviction::NodeLists<kQueues> queues_;
  base::HugeVector<std::uint8_t> hits_;
};

}  // namespace cachalot::cache_sim
