#include "eviction/wrappers/quota_leaves.h"

#include <utility>

#include "base/check.h"

namespace cachalot::eviction {

QuotaLeaves::QuotaLeaves(std::unique_ptr<EvictionPolicy> order, std::uint32_t capacity_nodes,
                         std::vector<std::uint64_t> quotas,
                         std::function<std::uint32_t(NodeId)> quota_of)
    : order_(std::move(order)), quotas_(std::move(quotas)), quota_of_(std::move(quota_of)) {
  CACHALOT_CHECK(quotas_.size() <= kMaxQuotas);
  grow(capacity_nodes);
}

void QuotaLeaves::grow(std::uint32_t capacity_nodes) {
  order_->grow(capacity_nodes);
  lists_.grow(capacity_nodes);
}

void QuotaLeaves::insert(NodeId node, NodeId parent, std::uint64_t name) {
  order_->insert(node, parent, name);
  if (parent != kNoNode) {
    if (lists_.list_of(parent) != Lists::kInNone) lists_.insert_older_than(node, parent);
    return;
  }
  const std::uint32_t quota = quota_of_(node);
  if (quota < quotas_.size()) lists_.push_newest(quota, node);
}

// Tail first, root last: a parent stays newer than its children.
void QuotaLeaves::touch(NodeId node) {
  order_->touch(node);
  const std::uint8_t list = lists_.list_of(node);
  if (list == Lists::kInNone) return;
  for (; node != kNoNode; node = residency().parent(node)) lists_.move_to_newest(list, node);
}

void QuotaLeaves::erase(NodeId node) {
  order_->erase(node);
  holds_.forget(node);
  if (lists_.list_of(node) != Lists::kInNone) lists_.erase(node);
}

NodeId QuotaLeaves::oldest_leaf(std::uint32_t quota, NodeId protect) const {
  for (NodeId node = lists_.oldest(quota); node != kNoNode; node = lists_.newer(node)) {
    if (node != protect && residency().is_leaf(node) && !holds_.is_held(node)) return node;
  }
  return kNoNode;
}

NodeId QuotaLeaves::victim(NodeId protect) const {
  std::uint64_t most_over = 0;
  NodeId victim = kNoNode;
  for (std::uint32_t quota = 0; quota < quotas_.size(); ++quota) {
    if (lists_.size(quota) <= quotas_[quota] + most_over) continue;
    const NodeId leaf = oldest_leaf(quota, protect);
    if (leaf == kNoNode) continue;
    most_over = lists_.size(quota) - quotas_[quota];
    victim = leaf;
  }
  return victim != kNoNode ? victim : order_->victim(protect);
}

void QuotaLeaves::hold(NodeId node) {
  order_->hold(node);
  holds_.add(node, residency().capacity_nodes());
}

void QuotaLeaves::release(NodeId node) {
  order_->release(node);
  holds_.remove(node);
}

bool QuotaLeaves::is_valid() const {
  if (!order_->is_valid()) return false;
  for (NodeId node = 0; node < residency().capacity_nodes(); ++node) {
    const std::uint8_t list = lists_.list_of(node);
    if (!residency().contains(node)) {
      if (list != Lists::kInNone) return false;
      continue;
    }
    const NodeId parent = residency().parent(node);
    if (parent != kNoNode && lists_.list_of(parent) != list) return false;
  }
  std::vector<bool> is_passed(residency().capacity_nodes());
  for (std::uint32_t quota = 0; quota < quotas_.size(); ++quota) {
    std::uint32_t nodes = 0;
    for (NodeId node = lists_.oldest(quota); node != kNoNode; node = lists_.newer(node)) {
      const NodeId parent = residency().parent(node);
      if (parent != kNoNode && is_passed[parent]) return false;
      is_passed[node] = true;
      ++nodes;
    }
    if (nodes != lists_.size(quota)) return false;
  }
  return true;
}

}  // namespace cachalot::eviction
