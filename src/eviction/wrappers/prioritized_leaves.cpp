#include "eviction/wrappers/prioritized_leaves.h"

namespace cachalot::eviction {

void PrioritizedLeaves::grow(std::uint32_t capacity_nodes) {
  residency_.grow(capacity_nodes);
  if (capacity_nodes > priority_.size()) priority_.resize(capacity_nodes);
  for (const auto& order : orders_) {
    if (order != nullptr) order->grow(capacity_nodes);
  }
}

void PrioritizedLeaves::insert(NodeId node, NodeId parent, std::uint64_t name) {
  residency_.add(node, parent);
  const std::uint32_t priority = parent == kNoNode ? priority_of_(node) : priority_[parent];
  CACHALOT_CHECK(priority < kPriorities);
  priority_[node] = static_cast<std::uint8_t>(priority);
  std::unique_ptr<EvictionPolicy>& order = orders_[priority];
  if (order == nullptr) order = make_leaf_policy(kind_, residency_.capacity_nodes());
  order->insert(node, parent, name);
}

void PrioritizedLeaves::erase(NodeId node) {
  order_of(node).erase(node);
  residency_.remove(node);
}

NodeId PrioritizedLeaves::victim(NodeId protect) const {
  for (const auto& order : orders_) {
    if (order == nullptr) continue;
    const NodeId victim = order->victim(protect);  // absent from all but one
    if (victim != kNoNode) return victim;
  }
  return kNoNode;
}

bool PrioritizedLeaves::is_valid() const {
  if (!residency_.is_valid()) return false;
  std::uint64_t ordered = 0;
  for (const auto& order : orders_) {
    if (order == nullptr) continue;
    if (!order->is_valid()) return false;
    ordered += order->residency().size();
  }
  for (NodeId node = 0; node < residency_.capacity_nodes(); ++node) {
    if (!residency_.contains(node)) continue;
    const Residency& own = orders_[priority_[node]]->residency();
    if (!own.contains(node) || own.parent(node) != residency_.parent(node)) return false;
  }
  return ordered == residency_.size();
}

}  // namespace cachalot::eviction
