#include "tier/radix/components.h"

#include <algorithm>

#include "base/check.h"

namespace cachalot::tier {

std::span<const Slot> Components::slots(std::size_t c, Tier tier, NodeId node) const {
  const RadixNode& record = nodes_[node];
  if (!ComponentStore::is_in(c, tier, record)) return {};
  return record.components->parts[c].slots[index(tier)].view();
}

Status Components::attach(std::size_t c, Tier tier, NodeId node, std::span<const Slot> slots,
                          std::vector<Slot>& surplus) {
  const bool is_state = nodes_.components().component(c).rule == HitRule::kLastOnly;
  const std::size_t most = is_state ? 1 : nodes_[node].history.depth + nodes_[node].pages;
  if (slots.empty() || slots.size() > most) {
    return Error::make(Code::kInvalidArgument,
                       "radix component %zu: %zu slots for node %u; expected 1 to %zu", c,
                       slots.size(), node, most);
  }
  std::size_t rest = slots.size();
  for (NodeId at = node;; at = nodes_[at].parent) {
    if (!nodes_[at].is_in(tier)) {
      return Error::make(Code::kRefused, "radix component %zu: node %u is not in the tier", c, at);
    }
    if (is_state || rest <= nodes_[at].pages) break;
    rest -= nodes_[at].pages;
  }
  for (NodeId at = node; !slots.empty(); at = nodes_[at].parent) {
    const RadixNode& record = nodes_[at];
    const std::size_t count = is_state ? 1 : std::min<std::size_t>(slots.size(), record.pages);
    const std::span<const Slot> own = slots.last(count);
    slots = slots.first(slots.size() - count);
    if (ComponentStore::is_in(c, tier, record)) {
      surplus.insert(surplus.end(), own.begin(), own.end());
      continue;
    }
    if (!is_state && count < record.pages)
      nodes_.split(at, record.pages - static_cast<std::uint32_t>(count));
    nodes_.put_component(c, tier, at, own);
  }
  return {};
}

// Of the prefix that ends with `node`.
std::uint32_t Components::locked_pages(std::size_t c, NodeId node) const {
  const Component& component = nodes_.components().component(c);
  const std::uint32_t pages = nodes_[node].history.depth + nodes_[node].pages;
  return component.rule == HitRule::kTrailingPages ? std::min(component.pages, pages) : pages;
}

void Components::lock(std::size_t c, NodeId node) {
  if (node == kNoNode) return;
  CACHALOT_CHECK(nodes_[node].is_locked(Tier::kDevice));
  if (nodes_.components().component(c).rule == HitRule::kLastOnly)
    return nodes_.lock_component(c, node);
  for (std::uint32_t rest = locked_pages(c, node); rest > 0; node = nodes_[node].parent) {
    if (nodes_[node].pages > rest) nodes_.split(node, nodes_[node].pages - rest);
    nodes_.lock_component(c, node);
    rest -= nodes_[node].pages;
  }
}

void Components::unlock(std::size_t c, NodeId node) {
  if (node == kNoNode) return;
  if (nodes_.components().component(c).rule == HitRule::kLastOnly)
    return nodes_.unlock_component(c, node);
  for (std::uint32_t rest = locked_pages(c, node); rest > 0; node = nodes_[node].parent) {
    nodes_.unlock_component(c, node);
    rest -= nodes_[node].pages;
  }
}

void Components::keep_last(std::size_t c, NodeId node, std::size_t most, FreedSlots& freed) {
  if (node == kNoNode) return;
  std::vector<NodeId> path, owners;
  nodes_.forest().append_path(node, path);
  for (const NodeId each : path) {
    if (ComponentStore::is_in(c, Tier::kDevice, nodes_[each])) owners.push_back(each);
  }
  std::size_t count = owners.size();
  for (std::size_t i = 0; i + 1 < owners.size() && count > most; ++i) {
    const RadixNode& record = nodes_[owners[i]];
    if (ComponentStore::is_locked(c, record) || record.children > 1) continue;
    nodes_.drop_component(c, Tier::kDevice, owners[i], freed);
    --count;
  }
}

std::uint64_t Components::evict(std::size_t c, Tier tier, std::uint64_t slots, FreedSlots& freed) {
  const std::uint64_t before = use(c, tier);
  while (before - use(c, tier) < slots) {
    const NodeId node = nodes_.first_component(c, tier);
    if (node == kNoNode) break;
    nodes_.drop_component(c, tier, node, freed);
  }
  return before - use(c, tier);
}

void HitRules::add(const RadixNode& node, std::uint32_t pages) {
  pages_ += pages;
  holds_ = {true, true};
  for (std::size_t c = 0; c < store_.size(); ++c) {
    const Component& component = store_.component(c);
    const bool on_device = ComponentStore::is_in(c, Tier::kDevice, node);
    const bool has[] = {on_device, on_device || ComponentStore::is_in(c, Tier::kHost, node)};
    for (std::size_t where = 0; where < 2; ++where) {
      std::uint32_t& run = runs_[c][where];
      run = has[where] ? run + pages : 0;
      switch (component.rule) {
        case HitRule::kAllPages:
          holds_[where] = holds_[where] && run == pages_;
          break;
        case HitRule::kTrailingPages:
          holds_[where] = holds_[where] && run >= std::min(component.pages, pages_);
          break;
        case HitRule::kLastOnly:
          holds_[where] = holds_[where] && has[where] && pages == node.pages;
          break;
      }
    }
  }
}

}  // namespace cachalot::tier
