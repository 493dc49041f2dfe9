#include "cache_sim/stream/arc_cache.h"

#include <algorithm>

namespace cachalot::cache_sim {

bool ArcCache::access(std::uint32_t block, std::uint32_t) {
  const auto capacity = static_cast<double>(capacity_);
  const eviction::NodeId known = nodes_.find(block);
  if (known != eviction::kNoNode) {
    const auto list = static_cast<List>(lists_.list_of(known));
    if (list == kB1) {
      target_ = std::min(capacity, target_ + std::max(size(kB2) / size(kB1), 1.0));
      replace(false);
    } else if (list == kB2) {
      target_ = std::max(0.0, target_ - std::max(size(kB1) / size(kB2), 1.0));
      replace(true);
    }
    lists_.move_to_newest(kT2, known);
    return list == kT1 || list == kT2;
  }
  const std::uint64_t met_once = std::uint64_t{lists_.size(kT1)} + lists_.size(kB1);
  const std::uint64_t met_often = std::uint64_t{lists_.size(kT2)} + lists_.size(kB2);
  if (met_once >= capacity_) {
    if (lists_.size(kT1) < capacity_) {
      drop_oldest(kB1);
      replace(false);
    } else {
      drop_oldest(kT1);
    }
  } else if (met_once + met_often >= capacity_) {
    if (met_once + met_often - capacity_ >= capacity_) drop_oldest(kB2);
    replace(false);
  }
  const eviction::NodeId node = nodes_.add(block);
  lists_.grow(nodes_.room());
  lists_.push_newest(kT1, node);
  return false;
}

// Makes room among the resident ones, if there is none: T1's or T2's oldest becomes a ghost.
void ArcCache::replace(bool is_in_b2) {
  if (resident_blocks() < capacity_) return;
  const double t1 = size(kT1);
  const bool from_t1 = t1 >= 1 && (t1 > target_ || (is_in_b2 && t1 == target_));
  const List from = from_t1 || lists_.size(kT2) == 0 ? kT1 : kT2;
  const eviction::NodeId node = lists_.oldest(from);
  lists_.move_to_newest(from == kT1 ? kB1 : kB2, node);
}

void ArcCache::drop_oldest(List list) {
  const eviction::NodeId node = lists_.oldest(list);
  lists_.erase(node);
  nodes_.remove(node);
}

}  // namespace cachalot::cache_sim
