// A radix tree with the pools of slots that a controller would have; for tests.
#pragma once

#include <gtest/gtest.h>

#include <cstddef>
#include <numeric>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "tier/radix/radix_tree.h"

namespace cachalot::tier {

using Tokens = std::vector<Token>;
using Slots = std::vector<Slot>;

// Counts what is taken; a slot that is given back twice is a failure.
class TestPool {
 public:
  Slots take(std::size_t count) {
    Slots slots(count);
    std::iota(slots.begin(), slots.end(), next_);
    next_ += static_cast<Slot>(count);
    used_.insert(slots.begin(), slots.end());
    return slots;
  }
  void give(const Slots& slots) {
    for (const Slot slot : slots) EXPECT_EQ(used_.erase(slot), 1u) << "slot " << slot;
  }
  std::size_t used() const { return used_.size(); }

 private:
  Slot next_ = 100;
  std::set<Slot> used_;
};

struct TestTree {
  explicit TestTree(std::uint32_t page_tokens, const std::string& order = "lru")
      : tree({.page_tokens = page_tokens,
              .device_order = *eviction::parse_leaf_order(order),
              .host_order = *eviction::parse_leaf_order(order)}) {}

  // With fresh slots; gives the surplus back to its pool.
  Inserted insert(const RadixKey& key, InsertOptions options = {}) {
    TestPool& pool = options.tier == Tier::kDevice ? device : host;
    const std::size_t pages = key.tokens.size() / tree.options().page_tokens;
    slots = pool.take(pages - options.owned_pages);
    surplus.clear();
    const Result<Inserted> result = tree.insert(key, slots, options, surplus);
    EXPECT_TRUE(result) << result.error().message;
    pool.give(surplus);
    return *result;
  }
  Inserted insert(const Tokens& tokens, InsertOptions options = {}) {
    return insert(RadixKey{.tokens = tokens}, options);
  }
  RadixMatch match(const Tokens& tokens) { return tree.match({.tokens = tokens}); }
  RadixMatch peek(const Tokens& tokens) const { return tree.peek({.tokens = tokens}); }
  Slots device_slots(const Tokens& tokens) {
    MatchSlots found;
    tree.match({.tokens = tokens}, &found);
    return found.device;
  }
  Slots host_slots(const Tokens& tokens) {
    MatchSlots found;
    tree.match({.tokens = tokens}, &found);
    return found.host;
  }

  // Copies a node to host memory at once.
  Slots back_up(NodeId node) {
    const Slots to = host.take(tree.node(node).pages);
    const Status done = tree.attach(Tier::kHost, node, to);
    EXPECT_TRUE(done) << done.error().message;
    return to;
  }
  void back_up_path(NodeId node) {
    for (const NodeId each : path(node)) {
      if (!tree.node(each).is_in(Tier::kHost)) back_up(each);
    }
  }
  std::uint64_t evict(Tier tier, std::uint64_t pages, const UnbackedHandler& unbacked = {}) {
    FreedSlots freed;
    const std::uint64_t evicted = tree.evict(tier, pages, freed, unbacked);
    give(freed);
    return evicted;
  }
  Status demote(NodeId node) {
    FreedSlots freed;
    const Status done = tree.detach(Tier::kDevice, node, freed);
    give(freed);
    return done;
  }
  void give(const FreedSlots& freed) {
    device.give(freed.device);
    host.give(freed.host);
  }

  // From the root's child on.
  std::vector<NodeId> path(NodeId node) const {
    std::vector<NodeId> nodes;
    tree.forest().append_path(node, nodes);
    return nodes;
  }
  std::uint64_t pages(Tier tier) const { return tree.use(tier).pages; }
  // The books of tree and pools agree.
  bool is_valid() const {
    return tree.is_valid() && pages(Tier::kDevice) == device.used() &&
           pages(Tier::kHost) == host.used();
  }

  RadixTree tree;
  TestPool device, host;
  Slots slots;    // of the last insert
  Slots surplus;  // likewise
};

inline Tokens tokens_from(Token first, std::size_t count) {
  Tokens tokens(count);
  std::iota(tokens.begin(), tokens.end(), first);
  return tokens;
}

inline Tokens join(Tokens front, const Tokens& back) {
  front.insert(front.end(), back.begin(), back.end());
  return front;
}

}  // namespace cachalot::tier
