// The changes of a radix tree as a list of events, runs of neighbours in one event: what a router is told.
//
// 1. A stored event follows its parent's, or has none; its blocks are chained.
// 2. Neighbours are one event where they are of one kind, tier and namespace, and stored ones are chained. So
//    nothing is moved past a removal.
//
// Nodes without hashes make no events: fill their hashes, or give them to insert().
#pragma once

#include <cachalot/hash.h>

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "tier/radix/radix_tree.h"
#include "tier/radix/tree_listener.h"

namespace cachalot::tier {

struct TierEvent {
  enum class Kind : std::uint8_t { kStored, kRemoved, kCleared };

  Kind kind = Kind::kStored;
  Tier tier = Tier::kDevice;      // not of kCleared
  std::vector<BlockHash> hashes;  // one a page
  std::optional<BlockHash>
      parent;                 // kStored: of the page before the first; none: a namespace's first
  std::vector<Token> tokens;  // kStored: of all pages; one more for bigrams
  std::string extra;          // of the namespace
};

// @threads one at a time, as its tree
class TierEvents final : public TreeListener {
 public:
  explicit TierEvents(RadixTree& tree) : tree_(tree) { tree_.set_listener(this); }
  ~TierEvents() override { tree_.set_listener(nullptr); }
  TierEvents(const TierEvents&) = delete;
  TierEvents& operator=(const TierEvents&) = delete;

  // Those since the last call.
  std::vector<TierEvent> take() { return std::exchange(events_, {}); }
  // Pages stored or removed of nodes without hashes.
  std::uint64_t unnamed_pages() const { return unnamed_pages_; }

  void on_stored(Tier tier, NodeId node) override;
  void on_removed(Tier tier, NodeId node) override;
  void on_cleared() override;

 private:
  bool extends_last(TierEvent::Kind kind, Tier tier, NodeId node) const;
  TierEvent& event_for(TierEvent::Kind kind, Tier tier, NodeId node);

  RadixTree& tree_;
  std::vector<TierEvent> events_;
  std::uint64_t unnamed_pages_ = 0;
};

}  // namespace cachalot::tier
