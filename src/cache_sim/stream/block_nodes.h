// Gives the blocks that a cache knows dense node numbers, however many blocks a trace has: lists and
// heaps of a small cache stay small.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "base/check.h"
#include "base/huge_allocator.h"
#include "eviction/structure/node.h"

namespace cachalot::cache_sim {

// @threads one at a time
// @cost    O(1) amortised; 4 bytes a distinct block of the trace, 4 to 8 a node
class BlockNodes {
 public:
  std::uint32_t size() const { return size_; }
  // Nodes are below it: what lists and heaps must have room for.
  std::uint32_t room() const { return static_cast<std::uint32_t>(block_of_.size()); }

  // kNoNode: the block has none.
  eviction::NodeId find(std::uint32_t block) const {
    return block < node_of_.size() ? node_of_[block] : eviction::kNoNode;
  }
  std::uint32_t block(eviction::NodeId node) const { return block_of_[node]; }

  // The block must have none.
  eviction::NodeId add(std::uint32_t block) {
    if (block >= node_of_.size()) node_of_.resize(grown(block), eviction::kNoNode);
    eviction::NodeId node;
    if (free_.empty()) {
      node = used_++;
      if (node >= block_of_.size()) block_of_.resize(grown(node));
    } else {
      node = free_.back();
      free_.pop_back();
    }
    CACHALOT_CHECK(node_of_[block] == eviction::kNoNode);
    node_of_[block] = node;
    block_of_[node] = block;
    ++size_;
    return node;
  }
  void remove(eviction::NodeId node) {
    node_of_[block_of_[node]] = eviction::kNoNode;
    free_.push_back(node);
    --size_;
  }
  void prefetch(std::uint32_t block) const {
    if (block < node_of_.size()) __builtin_prefetch(node_of_.data() + block);
  }

 private:
  // A size that holds `index` and at least doubles, as far as numbers go.
  static std::size_t grown(std::uint32_t index) {
    constexpr std::size_t kMost =
        eviction::kMaxNodes - 255;  // NodeLists keeps some numbers to itself
    CACHALOT_CHECK(index < kMost);
    return std::min<std::size_t>(std::max<std::size_t>(1024, std::size_t{index} * 2), kMost);
  }

  std::uint32_t size_ = 0;
  std::uint32_t used_ = 0;
  std::vector<eviction::NodeId> free_;
  base::HugeVector<eviction::NodeId> node_of_;  // of a block
  base::HugeVector<std::uint32_t> block_of_;    // of a node
};

}  // namespace cachalot::cache_sim
