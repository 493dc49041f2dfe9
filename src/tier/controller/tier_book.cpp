#include "tier/controller/tier_book.h"

#include <algorithm>
#include <utility>

#include "base/check.h"

namespace cachalot::tier {

TierBook::TierBook(const RadixOptions& options, std::uint32_t device_blocks,
                   std::uint32_t host_blocks, Demote demote)
    : tree_(options),
      device_("L1", device_blocks),
      host_("L2", host_blocks),
      demote_(std::move(demote)) {}

bool TierBook::take(Tier tier, std::uint32_t count, std::vector<Slot>& slots) {
  SlotPool& free = free_of(tier);
  if (free.free_slots() < count) {
    FreedSlots freed;
    const std::uint64_t missing = count - free.free_slots();
    // Not for nothing: the evictable blocks must be enough.
    if (tree_.use(tier).evictable_pages() < missing) return false;
    UnbackedHandler handler;
    if (tier == Tier::kDevice && demotes_ && host_.slots() != 0)
      handler = [this](NodeId node) { return demote(node); };
    const std::uint64_t evicted = tree_.evict(tier, missing, freed, handler);
    (tier == Tier::kDevice ? counts_.device_blocks : counts_.host_blocks) += evicted;
    give(freed);
  }
  return free.take(count, slots);
}

UnbackedVictim TierBook::demote(NodeId node) {
  std::vector<Slot> slots;
  const std::uint32_t pages = tree_.node(node).pages;
  if (!take(Tier::kHost, pages, slots)) return UnbackedVictim::kDrop;
  demote_(node, slots);
  const Status attached = tree_.attach(Tier::kHost, node, slots);
  if (!attached) {
    give(Tier::kHost, slots);
    return UnbackedVictim::kDrop;
  }
  counts_.demoted_blocks += pages;
  demoted_.push_back(node);
  return UnbackedVictim::kBackedUp;
}

void TierBook::give(Tier tier, std::span<const Slot> slots) {
  const Status given = free_of(tier).give(slots);
  CACHALOT_CHECK(given.ok());
}

void TierBook::give(const FreedSlots& freed) {
  give(Tier::kDevice, freed.device);
  give(Tier::kHost, freed.host);
}

std::vector<NodeId> TierBook::take_demoted() {
  std::vector<NodeId> nodes = std::exchange(demoted_, {});
  std::erase_if(nodes, [&](NodeId node) {
    return !tree_.node(node).exists() || !tree_.node(node).is_in(Tier::kHost);
  });
  return nodes;
}

std::vector<NodeId> TierBook::path(NodeId node) const {
  std::vector<NodeId> nodes;
  for (; node != kNoNode && !tree_.node(node).is_root(); node = tree_.node(node).parent)
    nodes.push_back(node);
  std::reverse(nodes.begin(), nodes.end());
  return nodes;
}

void TierBook::drop_duplicates(NodeId node) {
  FreedSlots freed;
  for (const NodeId each : path(node)) {
    const RadixNode& record = tree_.node(each);
    if (!record.is_in(Tier::kDevice) || !record.is_in(Tier::kHost) || record.is_locked(Tier::kHost))
      continue;
    const Status dropped = tree_.detach(Tier::kHost, each, freed);
    CACHALOT_CHECK(dropped.ok());
  }
  give(freed);
}

Status TierBook::clear() {
  FreedSlots freed;
  CACHALOT_TRY(tree_.clear(freed));
  give(freed);
  return {};
}

bool TierBook::is_valid() const {
  const auto fits = [&](Tier tier) {
    return tree_.use(tier).pages + pool(tier).free_slots() <= pool(tier).slots();
  };
  return tree_.is_valid() && fits(Tier::kDevice) && fits(Tier::kHost);
}

}  // namespace cachalot::tier
