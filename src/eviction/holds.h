// How many holders each node has: takes memory only from the first hold on.
#pragma once

#include <cstdint>

#include "base/check.h"
#include "base/huge_allocator.h"
#include "eviction/structure/node.h"

namespace cachalot::eviction {

// @threads one at a time
// @cost    O(1); 4 bytes a node once there was a hold
class Holds {
 public:
  bool is_held(NodeId node) const { return node < counts_.size() && counts_[node] != 0; }
  std::uint32_t count(NodeId node) const { return node < counts_.size() ? counts_[node] : 0; }

  // `count` more holders of `node`, which is below `capacity_nodes`; true if it had none.
  bool add(NodeId node, std::uint32_t capacity_nodes, std::uint32_t count = 1) {
    CACHALOT_CHECK(node < capacity_nodes);
    if (capacity_nodes > counts_.size()) counts_.resize(capacity_nodes, 0);
    CACHALOT_CHECK(counts_[node] <= 0xffffffffu - count);
    counts_[node] += count;
    return counts_[node] == count;
  }
  // `count` fewer, of those it has; true if none is left.
  bool remove(NodeId node, std::uint32_t count = 1) {
    CACHALOT_CHECK(this->count(node) >= count);
    counts_[node] -= count;
    return counts_[node] == 0;
  }
  void forget(NodeId node) {
    if (node < counts_.size()) counts_[node] = 0;
  }

 private:
  base::HugeVector<std::uint32_t> counts_;
};

}  // namespace cachalot::eviction
