#include "tier/radix/component_store.h"

#include "base/check.h"

namespace cachalot::tier {

ComponentStore::ComponentStore(std::span<const Component> components)
    : components_(components.begin(), components.end()) {
  CACHALOT_CHECK(components.size() <= kMaxComponents);
  const eviction::LeafQueue queue{eviction::LeafOrder{}};
  queues_.assign(components.size(), {queue, queue});
}

void ComponentStore::grow(std::uint32_t capacity_nodes) {
  for (auto& queues : queues_) {
    for (eviction::LeafQueue& queue : queues) queue.grow(capacity_nodes);
  }
}

void ComponentStore::put(std::size_t c, Tier tier, NodeId id, RadixNode& node,
                         std::span<const Slot> slots) {
  CACHALOT_CHECK(c < size() && !is_in(c, tier, node) && slots.size() == slots_of(c, node));
  if (node.components == nullptr) node.components = std::make_unique<NodeComponents>();
  node.components->parts[c].slots[index(tier)] = PageItems<Slot>(slots);
  counts_[c][index(tier)] += slots.size();
  settle(c, id, node);
}

void ComponentStore::drop(std::size_t c, Tier tier, NodeId id, RadixNode& node, FreedSlots& freed) {
  CACHALOT_CHECK(is_in(c, tier, node));
  PageItems<Slot>& own = node.components->parts[c].slots[index(tier)];
  std::vector<Slot>& to = freed.of(c, tier);
  to.insert(to.end(), own.view().begin(), own.view().end());
  counts_[c][index(tier)] -= own.size();
  own = PageItems<Slot>();
  settle(c, id, node);
}

void ComponentStore::drop_all(Tier tier, NodeId id, RadixNode& node, FreedSlots& freed) {
  if (node.components == nullptr) return;
  for (std::size_t c = 0; c < size(); ++c) {
    if (is_in(c, tier, node)) drop(c, tier, id, node, freed);
  }
}

void ComponentStore::split(NodeId upper, RadixNode& above, NodeId lower, RadixNode& below) {
  if (below.components == nullptr) return;
  for (std::size_t c = 0; c < size(); ++c) {
    if (components_[c].rule == HitRule::kLastOnly) continue;  // the end is still that of `lower`
    if (above.components == nullptr) above.components = std::make_unique<NodeComponents>();
    NodeComponents::Part& front = above.components->parts[c];
    NodeComponents::Part& back = below.components->parts[c];
    for (std::size_t t = 0; t < kTiers; ++t) {
      if (!back.slots[t].empty()) front.slots[t] = back.slots[t].split_front(above.pages);
    }
    front.locks = back.locks;
    settle(c, upper, above);
    settle(c, lower, below);
  }
}

void ComponentStore::lock(std::size_t c, NodeId id, RadixNode& node) {
  if (node.components == nullptr) node.components = std::make_unique<NodeComponents>();
  ++node.components->parts[c].locks;
  settle(c, id, node);
}

void ComponentStore::unlock(std::size_t c, NodeId id, RadixNode& node) {
  CACHALOT_CHECK(is_locked(c, node));
  --node.components->parts[c].locks;
  settle(c, id, node);
}

void ComponentStore::settle(std::size_t c, NodeId id, const RadixNode& node) {
  for (const Tier tier : {Tier::kDevice, Tier::kHost}) {
    eviction::LeafQueue& queue = queues_[c][index(tier)];
    const bool belongs = is_in(c, tier, node) && !is_locked(c, node);
    if (belongs == queue.contains(id)) continue;
    if (belongs) {
      queue.push(id, node.history);
    } else {
      queue.erase(id);
    }
  }
}

bool ComponentStore::is_valid_node(NodeId id, const RadixNode& node, Counts& counts,
                                   Counts& queued) const {
  for (std::size_t c = 0; c < size(); ++c) {
    for (const Tier tier : {Tier::kDevice, Tier::kHost}) {
      const eviction::LeafQueue& queue = queues_[c][index(tier)];
      const bool belongs = is_in(c, tier, node) && !is_locked(c, node);
      if (queue.contains(id) != belongs) return false;
      if (belongs && !queue.is_valid(id, node.history)) return false;
      queued[c][index(tier)] += belongs ? 1 : 0;
      if (!is_in(c, tier, node)) continue;
      const std::size_t slots = node.components->parts[c].slots[index(tier)].size();
      if (slots != slots_of(c, node) || !node.is_in(tier)) return false;
      counts[c][index(tier)] += slots;
    }
  }
  return true;
}

bool ComponentStore::has_sizes(const Counts& queued) const {
  for (std::size_t c = 0; c < size(); ++c) {
    for (std::size_t t = 0; t < kTiers; ++t) {
      if (queues_[c][t].size() != queued[c][t] || !queues_[c][t].is_valid()) return false;
    }
  }
  return true;
}

}  // namespace cachalot::tier
