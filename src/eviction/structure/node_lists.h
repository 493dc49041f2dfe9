// Several lists over the same nodes, each from its oldest node to its newest; a node is in one of them
// or in none.
//
// One array of links: the first records are the lists' ends, so that no operation has a special case
// there.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "base/check.h"
#include "base/huge_allocator.h"
#include "eviction/structure/node.h"

namespace cachalot::eviction {

// @threads one at a time
// @cost    O(1) each; 9 bytes a node
template <std::uint32_t kLists>
class NodeLists {
 public:
  static_assert(kLists < 255);
  static constexpr std::uint8_t kInNone = 255;

  NodeLists() {
    for (std::uint32_t list = 0; list < kLists; ++list) links_.push_back({list, list});
  }

  // Makes room for nodes below `capacity_nodes`; never shrinks.
  void grow(std::uint32_t capacity_nodes) {
    CACHALOT_CHECK(capacity_nodes <= kMaxNodes - kLists);
    if (capacity_nodes <= list_of_.size()) return;
    links_.resize(std::size_t{capacity_nodes} + kLists);
    list_of_.resize(capacity_nodes, kInNone);
  }

  std::uint32_t size(std::uint32_t list) const { return sizes_[list]; }
  // kInNone: it is in none.
  std::uint8_t list_of(NodeId node) const { return list_of_[node]; }
  // kNoNode when the list is empty.
  NodeId oldest(std::uint32_t list) const { return node_at(links_[list].newer); }
  // The one before it in age; kNoNode for the newest.
  NodeId newer(NodeId node) const { return node_at(links_[node + kLists].newer); }

  // The node must be in none.
  void push_newest(std::uint32_t list, NodeId node) { link(list, node, list); }
  // The same list, one place on the older side of `newer`, which is in one.
  void insert_older_than(NodeId node, NodeId newer) { link(list_of_[newer], node, newer + kLists); }
  // These two need a node of some list.
  void erase(NodeId node) {
    CACHALOT_CHECK(list_of_[node] != kInNone);
    const Links own = links_[node + kLists];
    links_[own.older].newer = own.newer;
    links_[own.newer].older = own.older;
    --sizes_[list_of_[node]];
    list_of_[node] = kInNone;
  }
  void move_to_newest(std::uint32_t list, NodeId node) {
    erase(node);
    push_newest(list, node);
  }

 private:
  struct Links {
    std::uint32_t older = 0;
    std::uint32_t newer = 0;
  };

  void link(std::uint32_t list, NodeId node, std::uint32_t newer) {
    CACHALOT_CHECK(list_of_[node] == kInNone);
    const std::uint32_t record = node + kLists;
    const std::uint32_t older = links_[newer].older;
    links_[record] = {older, newer};
    links_[older].newer = record;
    links_[newer].older = record;
    list_of_[node] = static_cast<std::uint8_t>(list);
    ++sizes_[list];
  }

  static NodeId node_at(std::uint32_t record) {
    return record < kLists ? kNoNode : record - kLists;
  }

  base::HugeVector<Links> links_;
  base::HugeVector<std::uint8_t> list_of_;
  std::uint32_t sizes_[kLists] = {};
};

}  // namespace cachalot::eviction
