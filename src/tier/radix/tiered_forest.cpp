#include "tier/radix/tiered_forest.h"

#include <algorithm>
#include <vector>

#include "base/check.h"

namespace cachalot::tier {
namespace {

constexpr Tier kAllTiers[] = {Tier::kDevice, Tier::kHost};

}  // namespace

TieredForest::TieredForest(std::uint32_t page_tokens, eviction::LeafOrder device_order,
                           eviction::LeafOrder host_order)
    : forest_(page_tokens),
      queues_{eviction::LeafQueue(device_order), eviction::LeafQueue(host_order)},
      follows_uses_(!device_order.is_raised_by_uses() || !host_order.is_raised_by_uses()) {}

NodeId TieredForest::add_leaf(NodeId parent, std::span<const Token> tokens, Tier tier,
                              std::span<const Slot> slots, std::span<const BlockHash> hashes,
                              const eviction::LeafHistory& history) {
  CACHALOT_CHECK(may_be_below(parent, tier));
  const NodeId node = forest_.add_child(parent, tokens);
  grow_queues();
  RadixNode& record = forest_[node];
  const std::uint32_t depth = record.history.depth;
  record.history = history;
  record.history.depth = depth;
  record.hashes = PageItems<BlockHash>(hashes);
  put(tier, node, slots);
  settle(parent);
  return node;
}

NodeId TieredForest::split(NodeId lower, std::uint32_t pages) {
  const NodeId upper = forest_.split(lower, pages);
  grow_queues();
  RadixNode& record = forest_[upper];
  RadixNode& below = forest_[lower];
  for (const Tier tier : kAllTiers) {
    record.locks[index(tier)] = below.is_locked(tier) ? 1 : 0;
    eviction::LeafQueue& queue = queues_[index(tier)];
    if (queue.contains(lower)) queue.lowered(lower, below.history);  // it is deeper now
  }
  return upper;
}

bool TieredForest::may_be_below(NodeId parent, Tier tier) const {
  const RadixNode& above = forest_[parent];
  return tier == Tier::kHost || above.is_root() || above.is_in(tier);
}

void TieredForest::put(Tier tier, NodeId node, std::span<const Slot> slots) {
  RadixNode& record = forest_[node];
  CACHALOT_CHECK(!record.is_in(tier) && slots.size() == record.pages);
  CACHALOT_CHECK(may_be_below(record.parent, tier));
  record.slots[index(tier)] = PageItems<Slot>(slots);
  ++forest_[record.parent].tier_children[index(tier)];
  use_[index(tier)].pages += record.pages;
  if (record.is_locked(tier)) use_[index(tier)].protected_pages += record.pages;
  settle(node);
  if (tier == Tier::kDevice) settle(record.parent);
}

void TieredForest::release_slots(Tier tier, NodeId node, FreedSlots& freed) {
  RadixNode& record = forest_[node];
  const std::span<const Slot> slots = record.slots[index(tier)].view();
  freed.of(tier).insert(freed.of(tier).end(), slots.begin(), slots.end());
  record.slots[index(tier)] = PageItems<Slot>();
  --forest_[record.parent].tier_children[index(tier)];
  use_[index(tier)].pages -= record.pages;
  if (record.is_locked(tier)) use_[index(tier)].protected_pages -= record.pages;
}

void TieredForest::drop(Tier tier, NodeId node, FreedSlots& freed) {
  const RadixNode& record = forest_[node];
  const Tier other = tier == Tier::kDevice ? Tier::kHost : Tier::kDevice;
  CACHALOT_CHECK(record.is_in(tier) && record.is_in(other) && !record.is_locked(tier));
  release_slots(tier, node, freed);
  settle(node);
  if (tier == Tier::kDevice) settle(record.parent);
}

void TieredForest::remove(NodeId node, FreedSlots& freed) {
  RadixNode& record = forest_[node];
  const NodeId parent = record.parent;
  for (const Tier tier : kAllTiers) {
    CACHALOT_CHECK(!record.is_locked(tier));
    eviction::LeafQueue& queue = queues_[index(tier)];
    if (queue.contains(node)) queue.erase(node);
    if (record.is_in(tier)) release_slots(tier, node, freed);
  }
  forest_.remove(node);
  if (forest_[parent].exists()) settle(parent);
}

void TieredForest::clear(FreedSlots& freed) {
  CACHALOT_CHECK(held_locks() == 0);
  for (const NodeId root : forest_.roots()) {
    std::vector<NodeId> nodes;
    forest_.append_subtree(root, nodes);
    for (std::size_t i = nodes.size() - 1; i > 0; --i) remove(nodes[i], freed);
  }
}

void TieredForest::raise_priority(NodeId node, std::int32_t priority) {
  eviction::LeafHistory& history = forest_[node].history;
  history.priority = std::max(history.priority, priority);
}

void TieredForest::set_hashes(NodeId node, std::span<const BlockHash> hashes) {
  CACHALOT_CHECK(hashes.size() == forest_[node].pages);
  forest_[node].hashes = PageItems<BlockHash>(hashes);
}

void TieredForest::follow_use(NodeId node) {
  for (eviction::LeafQueue& queue : queues_) {
    if (queue.contains(node)) queue.used(node, forest_[node].history);
  }
}

void TieredForest::lock(Tier tier, NodeId node) {
  if (node == kNoNode) return;
  CACHALOT_CHECK(forest_[node].exists() && (forest_[node].is_root() || forest_[node].is_in(tier)));
  if (forest_[node].is_root()) return;
  ++held_locks_[index(tier)];
  for (; !forest_[node].is_root(); node = forest_[node].parent) {
    RadixNode& record = forest_[node];
    if (record.locks[index(tier)]++ != 0) return;
    if (record.is_in(tier)) use_[index(tier)].protected_pages += record.pages;
    settle(node);
  }
}

void TieredForest::unlock(Tier tier, NodeId node) {
  if (node == kNoNode || forest_[node].is_root()) return;
  CACHALOT_CHECK(forest_[node].is_locked(tier));
  --held_locks_[index(tier)];
  for (; !forest_[node].is_root(); node = forest_[node].parent) {
    RadixNode& record = forest_[node];
    if (--record.locks[index(tier)] != 0) return;
    if (record.is_in(tier)) use_[index(tier)].protected_pages -= record.pages;
    settle(node);
  }
}

bool TieredForest::is_leaf(Tier tier, const RadixNode& node) const {
  if (!node.is_in(tier) || node.is_locked(tier)) return false;
  if (tier == Tier::kDevice) return node.tier_children[index(tier)] == 0;
  return node.children == 0 && !node.is_in(Tier::kDevice);
}

void TieredForest::settle(NodeId node) {
  const RadixNode& record = forest_[node];
  for (const Tier tier : kAllTiers) {
    eviction::LeafQueue& queue = queues_[index(tier)];
    const bool belongs = is_leaf(tier, record);
    if (belongs == queue.contains(node)) continue;
    if (belongs) {
      queue.push(node, record.history);
    } else {
      queue.erase(node);
    }
  }
}

NodeId TieredForest::first_leaf(Tier tier) {
  return queues_[index(tier)].first(
      [&](NodeId node) -> const eviction::LeafHistory& { return forest_[node].history; });
}

void TieredForest::grow_queues() {
  for (eviction::LeafQueue& queue : queues_) queue.grow(forest_.capacity_nodes());
}

bool TieredForest::is_valid() const {
  if (!forest_.is_valid()) return false;
  std::vector<NodeId> nodes;
  for (const NodeId root : forest_.roots()) forest_.append_subtree(root, nodes);
  std::array<TierUse, kTiers> use = {};
  std::array<std::uint32_t, kTiers> leaves = {};
  std::array<std::uint64_t, kTiers> own_locks = {};
  for (const NodeId node : nodes) {
    const RadixNode& record = forest_[node];
    if (!record.is_root() && !record.is_in(Tier::kDevice) && !record.is_in(Tier::kHost))
      return false;
    if (!record.hashes.empty() && record.hashes.size() != record.pages) return false;
    for (const Tier tier : kAllTiers) {
      const std::size_t t = index(tier);
      std::uint32_t in_tier = 0, locked = 0;
      for (NodeId child = record.first_child; child != kNoNode;
           child = forest_[child].next_sibling) {
        in_tier += forest_[child].is_in(tier) ? 1 : 0;
        locked += forest_[child].is_locked(tier) ? 1 : 0;
      }
      if (in_tier != record.tier_children[t]) return false;
      if (queues_[t].contains(node) != is_leaf(tier, record)) return false;
      if (record.is_root()) continue;
      if (locked > record.locks[t]) return false;
      own_locks[t] += record.locks[t] - locked;
      if (tier == Tier::kDevice && record.is_locked(tier) && !record.is_in(tier)) return false;
      leaves[t] += is_leaf(tier, record) ? 1 : 0;
      if (is_leaf(tier, record) && !queues_[t].is_valid(node, record.history)) return false;
      if (!record.is_in(tier)) continue;
      if (record.slots[t].size() != record.pages || !may_be_below(record.parent, tier))
        return false;
      use[t].pages += record.pages;
      if (record.is_locked(tier)) use[t].protected_pages += record.pages;
    }
  }
  for (std::size_t t = 0; t < kTiers; ++t) {
    if (use[t].pages != use_[t].pages || use[t].protected_pages != use_[t].protected_pages)
      return false;
    if (leaves[t] != queues_[t].size() || !queues_[t].is_valid()) return false;
    if (own_locks[t] != held_locks_[t]) return false;
  }
  return true;
}

}  // namespace cachalot::tier
