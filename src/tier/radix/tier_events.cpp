#include "tier/radix/tier_events.h"

#include <utility>

namespace cachalot::tier {
namespace {

using Kind = TierEvent::Kind;

std::optional<BlockHash> hash_before(const RadixTree& tree, NodeId node) {
  const RadixNode& parent = tree.node(tree.node(node).parent);
  if (parent.hashes.empty()) return std::nullopt;
  return parent.hashes.view().back();
}

}  // namespace

bool TierEvents::extends_last(Kind kind, Tier tier, NodeId node) const {
  if (events_.empty()) return false;
  const TierEvent& last = events_.back();
  if (last.kind != kind || last.tier != tier || last.extra != tree_.forest().extra_of(node))
    return false;
  return kind == Kind::kRemoved || hash_before(tree_, node) == last.hashes.back();
}

TierEvent& TierEvents::event_for(Kind kind, Tier tier, NodeId node) {
  if (!extends_last(kind, tier, node)) {
    TierEvent event{.kind = kind,
                    .tier = tier,
                    .hashes = {},
                    .parent = {},
                    .tokens = {},
                    .extra = std::string(tree_.forest().extra_of(node))};
    if (kind == Kind::kStored) event.parent = hash_before(tree_, node);
    events_.push_back(std::move(event));
  }
  TierEvent& event = events_.back();
  const auto hashes = tree_.node(node).hashes.view();
  event.hashes.insert(event.hashes.end(), hashes.begin(), hashes.end());
  return event;
}

void TierEvents::on_stored(Tier tier, NodeId node) {
  const RadixNode& record = tree_.node(node);
  if (record.hashes.empty()) {
    unnamed_pages_ += record.pages;
    return;
  }
  TierEvent& event = event_for(Kind::kStored, tier, node);
  const std::size_t shared = event.tokens.empty() || !record.is_bigram ? 0 : 1;
  const auto tokens = record.tokens.view().subspan(shared);
  event.tokens.insert(event.tokens.end(), tokens.begin(), tokens.end());
}

void TierEvents::on_removed(Tier tier, NodeId node) {
  if (tree_.node(node).hashes.empty()) {
    unnamed_pages_ += tree_.node(node).pages;
    return;
  }
  event_for(Kind::kRemoved, tier, node);
}

void TierEvents::on_cleared() {
  TierEvent event;
  event.kind = Kind::kCleared;
  events_.push_back(std::move(event));
}

}  // namespace cachalot::tier
