#include "eviction/structure/lru_list.h"

namespace cachalot::eviction {

bool LruList::is_valid() const {
  std::uint32_t seen = 0;
  NodeId older = kNoNode;
  for (NodeId node = oldest(); node != kNoNode; node = at(node).newer) {
    if (node >= capacity_nodes() || at(node).older != older || ++seen > size_) return false;
    older = node;
  }
  if (seen != size_ || newest() != older) return false;
  std::uint32_t linked = 0;
  for (NodeId node = 0; node < capacity_nodes(); ++node) {
    const bool is_absent = at(node).older == kAbsentNode;
    if (is_absent != (at(node).newer == kAbsentNode)) return false;
    linked += is_absent ? 0 : 1;
  }
  return linked == size_;
}

}  // namespace cachalot::eviction
