#include "sim/cluster/prefix_cache.h"

#include "base/check.h"

namespace cachalot::sim {

void PrefixCache::make_policy() {
  policy_ = eviction::make_leaf_policy(kind_, 0);
  if (!copies_first_) return;
  auto copies = std::make_unique<eviction::CopiesFirst>(std::move(policy_), 0);
  copies_ = copies.get();
  policy_ = std::move(copies);
}

std::size_t PrefixCache::match(std::span<const std::uint32_t> path) const {
  std::size_t held = 0;
  while (held < path.size() && nodes_.find(path[held]) != eviction::kNoNode) ++held;
  return held;
}

std::size_t PrefixCache::store(std::span<const std::uint32_t> path, bool are_copies) {
  std::size_t held = match(path);
  eviction::NodeId tail = held == 0 ? eviction::kNoNode : nodes_.find(path[held - 1]);
  if (tail != eviction::kNoNode) policy_->touch(tail);
  for (; held < path.size() && make_room(tail); ++held) {
    const eviction::NodeId node = nodes_.add(path[held]);
    policy_->grow(nodes_.room());
    policy_->insert(node, tail, path[held]);
    if (are_copies && copies_ != nullptr) copies_->mark_copy(node);
    tail = node;
  }
  return held;
}

bool PrefixCache::make_room(eviction::NodeId tail) {
  if (nodes_.size() < capacity_) return true;
  if (capacity_ == 0) return false;
  const eviction::NodeId victim = policy_->victim(tail);
  if (victim == eviction::kNoNode) return false;
  policy_->erase(victim);
  nodes_.remove(victim);
  ++evictions_;
  return true;
}

void PrefixCache::hold(std::span<const std::uint32_t> path) {
  if (path.empty()) return;
  const eviction::NodeId node = nodes_.find(path.back());
  CACHALOT_CHECK(node != eviction::kNoNode);
  policy_->hold(node);
}

void PrefixCache::release(std::span<const std::uint32_t> path) {
  if (path.empty()) return;
  const eviction::NodeId node = nodes_.find(path.back());
  CACHALOT_CHECK(node != eviction::kNoNode);
  policy_->release(node);
}

void PrefixCache::clear() {
  nodes_ = cache_sim::BlockNodes();
  make_policy();
  ++generation_;
}

}  // namespace cachalot::sim
