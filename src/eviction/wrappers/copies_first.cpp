#include "eviction/wrappers/copies_first.h"

#include <utility>

#include "base/check.h"

namespace cachalot::eviction {

CopiesFirst::CopiesFirst(std::unique_ptr<EvictionPolicy> order, std::uint32_t capacity_nodes)
    : order_(std::move(order)), used_(0) {
  grow(capacity_nodes);
}

void CopiesFirst::grow(std::uint32_t capacity_nodes) {
  order_->grow(capacity_nodes);
  used_.grow(capacity_nodes);
  if (capacity_nodes > copy_.size()) {
    copy_.resize(capacity_nodes, Copy::kNone);
    used_at_.resize(capacity_nodes, 0);
  }
}

void CopiesFirst::insert(NodeId node, NodeId parent, std::uint64_t name) {
  order_->insert(node, parent, name);
  ++inserts_;
  if (parent != kNoNode && used_.contains(parent)) used_.erase(parent);
}

void CopiesFirst::mark_copy(NodeId node) {
  CACHALOT_CHECK(residency().is_leaf(node) && copy_[node] == Copy::kNone);
  copy_[node] = Copy::kFresh;
  ++copies_;
}

void CopiesFirst::touch(NodeId node) {
  order_->touch(node);
  if (copies_ == 0) return;
  for (; node != kNoNode; node = residency().parent(node)) use(node);
}

void CopiesFirst::use(NodeId node) {
  if (copy_[node] == Copy::kFresh) {
    copy_[node] = Copy::kUsed;
    used_at_[node] = inserts_;
    if (residency().is_leaf(node)) used_.insert_newest(node);
  } else if (copy_[node] == Copy::kUsed) {
    copy_[node] = Copy::kNone;
    --copies_;
    if (used_.contains(node)) used_.erase(node);
  }
}

// A chain goes from its tail on: the copy that has become a leaf is the next one.
void CopiesFirst::erase(NodeId node) {
  const NodeId parent = residency().parent(node);
  order_->erase(node);
  holds_.forget(node);
  if (used_.contains(node)) used_.erase(node);
  if (copy_[node] != Copy::kNone) --copies_;
  copy_[node] = Copy::kNone;
  if (parent != kNoNode && copy_[parent] == Copy::kUsed && residency().is_leaf(parent)) {
    used_.insert_older_than(parent, used_.oldest());
  }
}

NodeId CopiesFirst::victim(NodeId protect) const {
  const std::uint32_t spared = residency().size() / kSpared;
  for (NodeId node = used_.oldest(); node != kNoNode; node = used_.newer(node)) {
    if (node == protect || holds_.is_held(node)) continue;
    if (inserts_ - used_at_[node] < spared) break;
    return node;
  }
  return order_->victim(protect);
}

void CopiesFirst::hold(NodeId node) {
  order_->hold(node);
  holds_.add(node, residency().capacity_nodes());
}

void CopiesFirst::release(NodeId node) {
  order_->release(node);
  holds_.remove(node);
}

bool CopiesFirst::is_valid() const {
  if (!order_->is_valid() || !used_.is_valid()) return false;
  std::uint32_t copies = 0;
  for (NodeId node = 0; node < residency().capacity_nodes(); ++node) {
    if (copy_[node] != Copy::kNone) {
      ++copies;
      if (!residency().contains(node)) return false;
    }
    const bool is_listed = copy_[node] == Copy::kUsed && residency().is_leaf(node);
    if (is_listed != used_.contains(node)) return false;
  }
  return copies == copies_;
}

}  // namespace cachalot::eviction
