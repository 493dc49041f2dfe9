#include "eviction/leaf_lru.h"

#include <vector>

namespace cachalot::eviction {

void LeafLru::hold(NodeId node) {
  for (; node != kNoNode; node = residency_.parent(node)) {
    if (holds_.add(node, residency_.capacity_nodes())) list_.erase(node);
  }
}

// Tail first, so that a parent comes to stand on the newer side.
void LeafLru::end_holds(NodeId node, std::uint32_t holders) {
  for (; node != kNoNode; node = residency_.parent(node)) {
    if (holds_.remove(node, holders)) list_.insert_newest(node);
  }
}

bool LeafLru::is_valid() const {
  if (!residency_.is_valid() || !list_.is_valid()) return false;
  std::uint32_t held = 0;
  for (NodeId node = 0; node < residency_.capacity_nodes(); ++node) {
    if (!residency_.contains(node)) {
      if (holds_.is_held(node)) return false;
    } else if (holds_.is_held(node)) {
      ++held;
      const NodeId parent = residency_.parent(node);
      if (list_.contains(node) ||
          (parent != kNoNode && holds_.count(parent) < holds_.count(node))) {
        return false;
      }
    }
  }
  if (residency_.size() != list_.size() + held) return false;
  std::vector<bool> passed(residency_.capacity_nodes(), false);
  for (NodeId node = list_.oldest(); node != kNoNode; node = list_.newer(node)) {
    if (!residency_.contains(node)) return false;
    const NodeId parent = residency_.parent(node);
    if (parent != kNoNode && passed[parent]) return false;
    passed[node] = true;
  }
  return true;
}

}  // namespace cachalot::eviction
