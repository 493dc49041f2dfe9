// LRU and FIFO: one list.
#pragma once

#include "cache_sim/stream/block_nodes.h"
#include "cache_sim/stream/stream_cache.h"
#include "eviction/structure/lru_list.h"

namespace cachalot::cache_sim {

// @cost O(1); 8 bytes a resident block beside BlockNodes
template <bool kIsLru>
class QueueCache final : public StreamCache {
 public:
  explicit QueueCache(std::uint64_t capacity_blocks) : capacity_(capacity_blocks) {}

  bool access(std::uint32_t block, std::uint32_t) override {
    if (const eviction::NodeId node = nodes_.find(block); node != eviction::kNoNode) {
      if (kIsLru) queue_.move_to_newest(node);
      return true;
    }
    if (nodes_.size() >= capacity_) {
      const eviction::NodeId victim = queue_.oldest();
      queue_.erase(victim);
      nodes_.remove(victim);
    }
    const eviction::NodeId node = nodes_.add(block);
    queue_.grow(nodes_.room());
    queue_.insert_newest(node);
    return false;
  }

  std::uint64_t resident_blocks() const override { return nodes_.size(); }
  void prefetch(std::uint32_t block) const override { nodes_.prefetch(block); }

 private:
  std::uint64_t capacity_;
  BlockNodes nodes_;
  eviction::LruList queue_{0};
};

}  // namespace cachalot::cache_sim
