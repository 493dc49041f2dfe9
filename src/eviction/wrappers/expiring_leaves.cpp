#include "eviction/wrappers/expiring_leaves.h"

#include <utility>

namespace cachalot::eviction {

ExpiringLeaves::ExpiringLeaves(std::unique_ptr<EvictionPolicy> order, std::uint32_t capacity_nodes)
    : order_(std::move(order)), ages_(0) {
  grow(capacity_nodes);
}

void ExpiringLeaves::grow(std::uint32_t capacity_nodes) {
  order_->grow(capacity_nodes);
  ages_.grow(capacity_nodes);
  if (capacity_nodes > used_at_.size()) used_at_.resize(capacity_nodes, 0);
}

// What is stored below a prefix uses it.
void ExpiringLeaves::insert(NodeId node, NodeId parent, std::uint64_t name) {
  order_->insert(node, parent, name);
  if (parent != kNoNode) use(parent);
  ages_.insert(node, parent, name);
  used_at_[node] = now_;
}

void ExpiringLeaves::touch(NodeId node) {
  order_->touch(node);
  use(node);
}

void ExpiringLeaves::erase(NodeId node) {
  const NodeId parent = order_->residency().parent(node);
  const bool ends_holds = ages_.is_held(node);
  order_->erase(node);
  ages_.erase(node);
  used_at_[node] = 0;
  if (ends_holds && parent != kNoNode) use(parent);
}

void ExpiringLeaves::hold(NodeId node) {
  order_->hold(node);
  ages_.hold(node);
}

void ExpiringLeaves::release(NodeId node) {
  order_->release(node);
  ages_.release(node);
  use(node);
}

NodeId ExpiringLeaves::unused_since(std::uint32_t tick) const {
  const NodeId oldest = ages_.oldest();
  return oldest != kNoNode && used_at_[oldest] < tick ? oldest : kNoNode;
}

// A node that was used in this tick has its whole prefix used in it.
void ExpiringLeaves::use(NodeId node) {
  if (used_at_[node] == now_) return;
  ages_.touch(node);
  for (; node != kNoNode && used_at_[node] != now_; node = order_->residency().parent(node)) {
    used_at_[node] = now_;
  }
}

bool ExpiringLeaves::is_valid() const {
  if (!order_->is_valid() || !ages_.is_valid()) return false;
  const Residency& tree = order_->residency();
  if (tree.size() != ages_.residency().size()) return false;
  std::uint32_t before = 0;
  for (NodeId node = ages_.oldest(); node != kNoNode; node = ages_.newer(node)) {
    if (used_at_[node] < before) return false;
    before = used_at_[node];
  }
  for (NodeId node = 0; node < tree.capacity_nodes(); ++node) {
    if (tree.contains(node) != (used_at_[node] != 0)) return false;
    if (!tree.contains(node)) continue;
    const NodeId parent = tree.parent(node);
    if (parent != kNoNode && used_at_[parent] < used_at_[node]) return false;
  }
  return true;
}

}  // namespace cachalot::eviction
