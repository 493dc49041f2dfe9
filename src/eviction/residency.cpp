#include "eviction/residency.h"

namespace cachalot::eviction {

bool Residency::is_valid() const {
  std::vector<std::uint32_t> children(nodes_.size(), 0);
  std::uint32_t resident = 0;
  for (NodeId node = 0; node < nodes_.size(); ++node) {
    const NodeId parent = nodes_[node].parent;
    if (parent == kAbsentNode) continue;
    ++resident;
    if (parent == kNoNode) continue;
    if (!contains(parent)) return false;
    ++children[parent];
  }
  if (resident != size_) return false;
  std::vector<NodeId> ready;
  for (NodeId node = 0; node < nodes_.size(); ++node) {
    if (children[node] != nodes_[node].children) return false;
    if (contains(node) && children[node] == 0) ready.push_back(node);
  }
  // Taking leaves away until none is left takes all nodes, unless some parents form a circle.
  std::uint32_t taken = 0;
  while (!ready.empty()) {
    const NodeId node = ready.back();
    ready.pop_back();
    ++taken;
    const NodeId parent = nodes_[node].parent;
    if (parent != kNoNode && --children[parent] == 0) ready.push_back(parent);
  }
  return taken == size_;
}

}  // namespace cachalot::eviction
