// Any calls in any order, beside a model that is a map of prefixes.
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <algorithm>
#include <map>
#include <set>
#include <vector>

#include "tier/radix/radix_test_tree.h"
#include "tier/radix/radix_tree.h"

namespace cachalot::tier {
namespace {

// Every prefix of whole pages that is stored, with its last page's slot in each tier.
class PrefixModel {
 public:
  struct Place {
    Slot slots[kTiers];
    bool is_in[kTiers] = {false, false};
  };

  explicit PrefixModel(std::uint32_t page_tokens) : page_tokens_(page_tokens) {}

  Tokens prefix(const Tokens& tokens, std::size_t pages) const {
    return {tokens.begin(), tokens.begin() + static_cast<std::ptrdiff_t>(pages * page_tokens_)};
  }
  std::size_t pages(const Tokens& tokens) const { return tokens.size() / page_tokens_; }

  // Device slots of the pages of `tokens`; returns those that are not kept.
  Slots insert(const Tokens& tokens, const Slots& slots) {
    Slots surplus;
    for (std::size_t page = 0; page < pages(tokens); ++page) {
      Place& place = places_[prefix(tokens, page + 1)];
      if (place.is_in[0]) {
        surplus.push_back(slots[page]);
      } else {
        place.is_in[0] = true;
        place.slots[0] = slots[page];
      }
    }
    return surplus;
  }
  void put(Tier tier, const Tokens& path, std::size_t first_page, const Slots& slots) {
    for (std::size_t i = 0; i < slots.size(); ++i) {
      Place& place = places_[prefix(path, first_page + i + 1)];
      place.is_in[index(tier)] = true;
      place.slots[index(tier)] = slots[i];
    }
  }
  // By its slot, which only one prefix has.
  void drop(Tier tier, const Slots& slots) {
    const std::set<Slot> gone(slots.begin(), slots.end());
    for (auto it = places_.begin(); it != places_.end();) {
      Place& place = it->second;
      if (place.is_in[index(tier)] && gone.count(place.slots[index(tier)]) != 0)
        place.is_in[index(tier)] = false;
      it = place.is_in[0] || place.is_in[1] ? std::next(it) : places_.erase(it);
    }
  }
  MatchSlots match(const Tokens& tokens) const {
    MatchSlots found;
    for (std::size_t page = 0; page < pages(tokens); ++page) {
      const auto place = places_.find(prefix(tokens, page + 1));
      if (place == places_.end()) break;
      if (place->second.is_in[0]) {
        found.device.push_back(place->second.slots[0]);
      } else {
        found.host.push_back(place->second.slots[1]);
      }
    }
    return found;
  }
  std::size_t count(Tier tier) const {
    return static_cast<std::size_t>(
        std::count_if(places_.begin(), places_.end(),
                      [&](const auto& p) { return p.second.is_in[index(tier)]; }));
  }
  bool has(const Tokens& tokens) const { return places_.count(tokens) != 0; }

 private:
  std::uint32_t page_tokens_;
  std::map<Tokens, Place> places_;
};

struct Machine {
  Machine(std::uint32_t page_tokens, const std::string& order)
      : t(page_tokens, order), model(page_tokens) {}

  Tokens path_of(NodeId last) const {
    Tokens tokens;
    for (const NodeId each : t.path(last)) {
      const auto own = t.tree.node(each).tokens.view();
      tokens.insert(tokens.end(), own.begin(), own.end());
    }
    return tokens;
  }

  void insert(const Tokens& tokens) {
    t.insert(tokens);
    RC_ASSERT(t.surplus == model.insert(tokens, t.slots));
  }
  void match(const Tokens& tokens) {
    const RadixMatch peeked = t.tree.peek({.tokens = tokens});
    MatchSlots found;
    const RadixMatch matched = t.tree.match({.tokens = tokens}, &found);
    const MatchSlots expected = model.match(tokens);
    RC_ASSERT(found.device == expected.device);
    RC_ASSERT(found.host == expected.host);
    RC_ASSERT(matched.device_pages == expected.device.size());
    RC_ASSERT(peeked.device_pages == matched.device_pages);
    RC_ASSERT(peeked.host_pages == matched.host_pages);
    node = matched.node;
    device_node = matched.device_node;
  }
  void lock(Tier tier) {
    const NodeId at = tier == Tier::kDevice ? device_node : node;
    if (at == kNoNode || !t.tree.node(at).is_in(tier)) return;
    t.tree.lock(tier, at);
    locked[index(tier)].push_back({at, path_of(at)});
  }
  void unlock(Tier tier) {
    auto& own = locked[index(tier)];
    if (own.empty()) return;
    t.tree.unlock(tier, own.front().first);
    own.erase(own.begin());
  }
  void back_up() {
    for (const NodeId each : t.path(node)) {
      const RadixNode& record = t.tree.node(each);
      if (!record.is_in(Tier::kDevice) || record.is_in(Tier::kHost) || record.backup != 0) continue;
      const auto ticket = t.tree.backups().begin(each);
      RC_ASSERT(static_cast<bool>(ticket));
      tickets.push_back({*ticket, {path_of(each), t.tree.node(each).pages}});
    }
  }
  void end_backup(bool succeeds) {
    if (tickets.empty()) return;
    const auto [ticket, what] = tickets.front();
    tickets.erase(tickets.begin());
    if (!succeeds) {
      RC_ASSERT(static_cast<bool>(t.tree.backups().cancel(ticket)));
      return;
    }
    const auto& [path, pages] = what;
    const Slots slots = t.host.take(pages);
    std::vector<NodeId> nodes;
    Slots surplus;
    RC_ASSERT(static_cast<bool>(t.tree.backups().finish(ticket, slots, nodes, surplus)));
    RC_ASSERT(surplus.empty());
    model.put(Tier::kHost, path, model.pages(path) - pages, slots);
  }
  void load_back() {
    for (const NodeId each : t.path(node)) {
      if (t.tree.node(each).is_in(Tier::kDevice)) continue;
      const Slots slots = t.device.take(t.tree.node(each).pages);
      RC_ASSERT(static_cast<bool>(t.tree.attach(Tier::kDevice, each, slots)));
      model.put(Tier::kDevice, path_of(each), t.tree.node(each).history.depth, slots);
    }
  }
  void evict(Tier tier, std::uint64_t pages, bool drops) {
    FreedSlots freed;
    const UnbackedHandler handler = [&](NodeId victim) {
      if (drops) return UnbackedVictim::kDrop;
      const Slots slots = t.back_up(victim);
      model.put(Tier::kHost, path_of(victim), t.tree.node(victim).history.depth, slots);
      return UnbackedVictim::kBackedUp;
    };
    const std::uint64_t before = t.pages(tier);
    const std::uint64_t evicted = t.tree.evict(tier, pages, freed, handler);
    RC_ASSERT(evicted == before - t.pages(tier));
    settle(freed);
  }
  void settle(const FreedSlots& freed) {
    t.give(freed);
    model.drop(Tier::kDevice, freed.device);
    model.drop(Tier::kHost, freed.host);
  }
  void check() {
    RC_ASSERT(t.is_valid());
    for (const Tier tier : {Tier::kDevice, Tier::kHost}) {
      RC_ASSERT(t.pages(tier) == model.count(tier));
      for (const auto& [at, path] : locked[index(tier)]) {
        RC_ASSERT(t.tree.node(at).is_in(tier));
        RC_ASSERT(path_of(at) == path);
        RC_ASSERT(model.has(path));
      }
    }
  }

  TestTree t;
  PrefixModel model;
  NodeId node = kNoNode, device_node = kNoNode;  // of the last match
  std::vector<std::pair<NodeId, Tokens>> locked[kTiers];
  std::vector<std::pair<BackupTicket, std::pair<Tokens, std::uint32_t>>> tickets;
};

RC_GTEST_PROP(RadixStates, TheTreeIsTheMapOfItsPrefixes, ()) {
  const auto page_tokens = *rc::gen::element<std::uint32_t>(1, 2, 3);
  Machine m(page_tokens, *rc::gen::element<std::string>("lru", "lfu", "fifo", "length_aware",
                                                        "slru", "priority", "mru", "filo"));
  const auto steps = *rc::gen::resize(
      120, rc::gen::container<std::vector<std::tuple<int, std::uint32_t, std::vector<bool>>>>(
               rc::gen::tuple(rc::gen::inRange(0, 13), rc::gen::inRange<std::uint32_t>(0, 12),
                              rc::gen::resize(16, rc::gen::arbitrary<std::vector<bool>>()))));
  for (const auto& [what, number, bits] : steps) {
    const Tokens tokens(bits.begin(), bits.end());
    switch (what) {
      case 0:
      case 1:
      case 2:
        m.insert(tokens);
        break;
      case 3:
      case 4:
        m.match(tokens);
        break;
      case 5:
      case 6:
        m.match(tokens);
        m.lock(what == 5 ? Tier::kDevice : Tier::kHost);
        break;
      case 7:
      case 8:
        m.unlock(number % 2 == 0 ? Tier::kDevice : Tier::kHost);
        break;
      case 9:
        m.match(tokens);
        m.back_up();
        break;
      case 10:
        m.end_backup(number < 9);
        break;
      case 11:
        m.match(tokens);
        m.load_back();
        break;
      case 12:
        m.evict(number % 3 == 0 ? Tier::kHost : Tier::kDevice, number, bits.size() % 2 == 0);
        break;
    }
    m.check();
  }
}

}  // namespace
}  // namespace cachalot::tier
