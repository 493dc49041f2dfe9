// A priority queue of nodes whose ranks may change: the lowest rank is on top.
//
// Four children a node of the heap, not two: half the levels, and the ranks of all four lie in one or
// two cache lines. Ranks stand in the heap itself, so that comparing follows no pointer.
#pragma once

#include <compare>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "base/check.h"
#include "base/huge_allocator.h"
#include "eviction/structure/node.h"

namespace cachalot::eviction {

// Compared from the first number on. The caller ensures that no two nodes tie, or that it does
// not matter: a heap's order of equals depends on its history.
struct Rank {
  std::uint64_t first = 0;
  std::uint64_t second = 0;

  friend auto operator<=>(const Rank&, const Rank&) = default;
};

// @threads one at a time
// @cost    O(log n) to push, update and erase, O(1) for the rest; 4 bytes a node of the capacity and
//          24 for each that is in the heap
class IndexedHeap {
 public:
  // Makes room for nodes below `capacity_nodes`; never shrinks.
  void grow(std::uint32_t capacity_nodes) {
    CACHALOT_CHECK(capacity_nodes <= kMaxNodes);
    if (capacity_nodes > place_of_.size()) place_of_.resize(capacity_nodes, kNowhere);
  }

  std::uint32_t size() const { return static_cast<std::uint32_t>(heap_.size()); }
  bool contains(NodeId node) const {
    return node < place_of_.size() && place_of_[node] != kNowhere;
  }

  // `node` must not be in the heap.
  void push(NodeId node, const Rank& rank) {
    CACHALOT_CHECK(node < place_of_.size() && place_of_[node] == kNowhere);
    heap_.push_back({rank, node});
    rise(heap_.size() - 1);
  }

  // These need a node of the heap.
  void update(NodeId node, const Rank& rank) {
    const std::size_t place = place_of(node);
    const bool is_lower = rank < heap_[place].rank;
    heap_[place].rank = rank;
    is_lower ? rise(place) : sink(place);
  }
  void erase(NodeId node) {
    const std::size_t place = place_of(node);
    place_of_[node] = kNowhere;
    const Item last = heap_.back();
    heap_.pop_back();
    if (place == heap_.size()) return;
    const bool is_lower = last.rank < heap_[place].rank;
    heap_[place] = last;
    is_lower ? rise(place) : sink(place);
  }
  // `by` takes the place of `node`: cheaper than erase and push where their ranks are near.
  void replace(NodeId node, NodeId by, const Rank& rank) {
    CACHALOT_CHECK(by < place_of_.size() && place_of_[by] == kNowhere);
    const std::size_t place = place_of(node);
    place_of_[node] = kNowhere;
    heap_[place].node = by;
    place_of_[by] = static_cast<std::uint32_t>(place);
    update(by, rank);
  }
  const Rank& rank(NodeId node) const { return heap_[place_of(node)].rank; }

  // kNoNode when empty.
  NodeId top() const { return heap_.empty() ? kNoNode : heap_[0].node; }
  // The lowest but `spared`, which may be kNoNode or not in the heap.
  NodeId top_but(NodeId spared) const {
    if (heap_.empty() || heap_[0].node != spared) return top();
    std::size_t lowest = 0;
    for (std::size_t child = 1; child <= kWays && child < heap_.size(); ++child) {
      if (lowest == 0 || heap_[child].rank < heap_[lowest].rank) lowest = child;
    }
    return lowest == 0 ? kNoNode : heap_[lowest].node;
  }

  // No child ranks below its parent, and places are right. O(n).
  bool is_valid() const {
    for (std::size_t place = 0; place < heap_.size(); ++place) {
      if (place_of_[heap_[place].node] != place) return false;
      if (place != 0 && heap_[place].rank < heap_[parent(place)].rank) return false;
    }
    return true;
  }

 private:
  static constexpr std::size_t kWays = 4;
  static constexpr std::uint32_t kNowhere = 0xffffffffu;

  struct Item {
    Rank rank;
    NodeId node;
  };

  static std::size_t parent(std::size_t place) { return (place - 1) / kWays; }

  std::size_t place_of(NodeId node) const {
    CACHALOT_CHECK(contains(node));
    return place_of_[node];
  }
  void put(std::size_t place, const Item& item) {
    heap_[place] = item;
    place_of_[item.node] = static_cast<std::uint32_t>(place);
  }
  void rise(std::size_t place) {
    const Item item = heap_[place];
    while (place != 0 && item.rank < heap_[parent(place)].rank) {
      put(place, heap_[parent(place)]);
      place = parent(place);
    }
    put(place, item);
  }
  void sink(std::size_t place) {
    const Item item = heap_[place];
    for (;;) {
      const std::size_t first = place * kWays + 1;
      if (first >= heap_.size()) break;
      const std::size_t end = first + kWays < heap_.size() ? first + kWays : heap_.size();
      std::size_t lowest = first;
      for (std::size_t child = first + 1; child < end; ++child) {
        if (heap_[child].rank < heap_[lowest].rank) lowest = child;
      }
      if (!(heap_[lowest].rank < item.rank)) break;
      put(place, heap_[lowest]);
      place = lowest;
    }
    put(place, item);
  }

  base::HugeVector<Item> heap_;
  base::HugeVector<std::uint32_t> place_of_;  // of a node
};

}  // namespace cachalot::eviction
