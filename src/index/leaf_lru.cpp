#include "index/leaf_lru.h"

#include <vector>

namespace cachalot::index {

bool LeafLru::is_valid() const {
  if (!residency_.is_valid() || !list_.is_valid() || residency_.size() != list_.size()) {
    return false;
  }
  std::vector<bool> passed(residency_.capacity_nodes(), false);
  for (NodeId node = list_.oldest(); node != kNoNode; node = list_.newer(node)) {
    if (!residency_.contains(node)) return false;
    const NodeId parent = residency_.parent(node);
    if (parent != kNoNode && passed[parent]) return false;
    passed[node] = true;
  }
  return true;
}

}  // namespace cachalot::index
