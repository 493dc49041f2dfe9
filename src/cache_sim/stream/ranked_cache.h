// LFU and LengthAware: the lowest rank goes. Orders as in eviction/ranked_leaves.h, with the place of a
// block in its request for its depth.
#pragma once

#include "cache_sim/stream/block_nodes.h"
#include "cache_sim/stream/stream_cache.h"
#include "eviction/ranked_leaves.h"
#include "eviction/structure/indexed_heap.h"

namespace cachalot::cache_sim {

// @cost O(log capacity); 52 bytes a resident block beside BlockNodes
template <class Order>
class RankedCache final : public StreamCache {
 public:
  explicit RankedCache(std::uint64_t capacity_blocks) : capacity_(capacity_blocks) {}

  bool access(std::uint32_t block, std::uint32_t place) override {
    ++now_;
    if (const eviction::NodeId node = nodes_.find(block); node != eviction::kNoNode) {
      eviction::NodeMemory& memory = memory_[node];
      memory.used_at = now_;
      if (memory.uses != 0xffffffffu) ++memory.uses;
      heap_.update(node, Order::rank(memory));
      return true;
    }
    if (nodes_.size() >= capacity_) {
      const eviction::NodeId victim = heap_.top();
      heap_.erase(victim);
      nodes_.remove(victim);
    }
    const eviction::NodeId node = nodes_.add(block);
    heap_.grow(nodes_.room());
    if (memory_.size() < nodes_.room()) memory_.resize(nodes_.room());
    memory_[node] = {.stored_at = now_, .used_at = now_, .uses = 1, .depth = place};
    heap_.push(node, Order::rank(memory_[node]));
    return false;
  }

  std::uint64_t resident_blocks() const override { return nodes_.size(); }
  void prefetch(std::uint32_t block) const override { nodes_.prefetch(block); }

 private:
  std::uint64_t capacity_;
  std::uint64_t now_ = 0;
  BlockNodes nodes_;
  eviction::IndexedHeap heap_;
  base::HugeVector<eviction::NodeMemory> memory_;
};

}  // namespace cachalot::cache_sim
