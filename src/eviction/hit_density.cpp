#include "eviction/hit_density.h"

#include <algorithm>
#include <utility>

#include "base/check.h"

namespace cachalot::eviction {

HitDensity::HitDensity(std::uint32_t capacity_nodes)
    : residency_(0), blocks_(kHeads), leaves_(blocks_, table_, kBuckets) {
  grow(capacity_nodes);
}

void HitDensity::grow(std::uint32_t capacity_nodes) {
  residency_.grow(capacity_nodes);
  if (capacity_nodes > seen_of_.size()) seen_of_.resize(capacity_nodes, kNone);
}

void HitDensity::start() {
  finish();
  is_erasing_ = false;
  is_full_ = {false, false};
  hits_ = {0, 0};
  own_hits_ = depth_ = turn_ = new_turn_ = 0;
}

void HitDensity::touch(NodeId node) {
  CACHALOT_CHECK(residency_.contains(node));
  start();
  path_.clear();
  for (Seen e = seen_of_[node]; e != kNone; e = blocks_[e].parent) path_.push_back(e);
  depth_ = own_hits_ = static_cast<std::uint32_t>(path_.size());
  for (std::size_t i = path_.size(); i-- > 0;) {
    const Seen e = path_[i];
    use(e, true);
    turn_ = std::max<std::uint32_t>(turn_, blocks_[e].turn);
    tail_ = e;
  }
}

void HitDensity::insert(NodeId node, NodeId parent, std::uint64_t name) {
  residency_.add(node, parent);
  const Seen above = parent == kNoNode ? kNone : seen_of_[parent];
  if (above == kNone) {
    start();
  } else if (above != tail_) {
    touch(parent);
  }
  is_erasing_ = false;

  Seen e = blocks_.find(name);
  bool is_named = true;
  if (e != kNone) {
    // Two blocks of one name: none that hashes whole prefixes has them, but nothing may break.
    const Record& r = blocks_[e];
    if (r.is_resident() || (r.shadows != 0 && r.parent != above)) {
      e = kNone;
      is_named = false;
    }
  }
  if (e == kNone) {
    e = blocks_.add(name, is_named);
    blocks_[e].is_sample = ++made_ % kSampleEvery == 0;
    new_turn_ = turn_ + 1;
    blocks_[e].turn = static_cast<std::uint8_t>(std::min(new_turn_, kTurns));
  } else {
    unghost(e);
    turn_ = std::max<std::uint32_t>(turn_, blocks_[e].turn);
  }
  Record& r = blocks_[e];
  r.parent = above;
  r.node = node;
  seen_of_[node] = e;
  use(e, false);
  tail_ = e;
  ++depth_;
}

// The next block of the request in hand, after tail_.
void HitDensity::use(Seen e, bool was_resident) {
  const bool is_lru_hit = use_in(e, Shadow::kLru, was_resident);
  const bool is_density_hit = use_in(e, Shadow::kDensity, was_resident);
  if (is_lru_hit) ++hits_[kLru];
  if (is_density_hit) ++hits_[kDensity];
  if (is_lru_hit != is_density_hit) {
    guard_.count_fate(is_lru_hit ? Shadow::kLru : Shadow::kDensity, true, space());
  }
}

// True if the shadow held it.
bool HitDensity::use_in(Seen e, Shadow s, bool was_resident) {
  const Seen parent = blocks_[e].parent;
  const bool is_lru = s == Shadow::kLru;
  if (blocks_[e].is_in(s)) {
    if (!blocks_.is_listed(e, s)) return true;
    if (is_lru) {
      blocks_.unlink(e, s);
      blocks_.link(e, parent == kNone || !blocks_.is_listed(parent, s) ? kOrder : parent, s);
    } else {
      leaves_.erase(e);
    }
    return true;
  }
  while (!is_full_[index(s)] && size_[index(s)] >= space()) {
    const Seen victim = shadow_victim(s, parent);
    if (victim == kNone) {
      is_full_[index(s)] = true;
    } else {
      leave(victim, s);
    }
  }
  if (is_full_[index(s)]) {
    if (!was_resident) depart(e, s);
    return false;
  }
  if (was_resident) --departed_[index(s)];
  if (blocks_.is_listed(e, s)) blocks_.unlink(e, s);
  Record& r = blocks_[e];
  r.shadows |= static_cast<std::uint8_t>(1u << index(s));
  r.children[index(s)] = 0;
  ++size_[index(s)];
  if (parent != kNone) ++blocks_[parent].children[index(s)];
  if (is_lru && !is_held(r)) {
    blocks_.link(e, parent == kNone || !blocks_.is_listed(parent, s) ? kOrder : parent, s);
  }
  return false;
}

// See LeafLru::victim() for the walk. In the other shadow no list holds a block of the path.
HitDensity::Seen HitDensity::shadow_victim(Shadow s, Seen tail) const {
  if (s == Shadow::kDensity) return leaves_.least();
  Seen e = blocks_.newer(kOrder, s);
  while (e != kOrder && e == tail) {
    tail = blocks_[tail].parent;
    e = blocks_.newer(e, s);
  }
  return e == kOrder ? kNone : e;
}

void HitDensity::depart(Seen e, Shadow s) {
  ++departed_[index(s)];
  if (!is_held(blocks_[e])) blocks_.link(e, kDeparted, s);
}

// A leaf of the shadow leaves it.
void HitDensity::leave(Seen e, Shadow s) {
  if (blocks_.is_listed(e, s)) {
    // What stands beside it goes next, as a rule.
    const Seen next = blocks_.newer(e, s);
    if (s == Shadow::kDensity) {
      leaves_.erase(e);
    } else {
      blocks_.unlink(e, s);
    }
    blocks_.prefetch_removal(next);
    if (blocks_[next].parent != kNone) blocks_.prefetch(blocks_[next].parent);
    blocks_.prefetch(blocks_.newer(next, s));
  }
  Record& r = blocks_[e];
  r.shadows &= static_cast<std::uint8_t>(~(1u << index(s)));
  --size_[index(s)];
  if (!r.is_in(other(s))) guard_.count_fate(s, false, space());
  if (r.parent != kNone && --blocks_[r.parent].children[index(s)] == 0 && s == Shadow::kDensity) {
    expose(r.parent);
  }
  if (r.is_resident()) {
    depart(e, s);
  } else {
    drop_unless_wanted(e);
  }
}

bool HitDensity::is_in_hand(Seen e) const {
  Seen at = tail_;
  while (at != kNone && at != e) at = blocks_[at].parent;
  return at == e;
}

// A block of the density shadow that has no child there, or no holder any more, is a leaf of it;
// but not yet if it is used right now.
void HitDensity::expose(Seen e) {
  const Record& r = blocks_[e];
  if (r.children[kDensity] != 0 || e == tail_ || is_held(r)) return;
  if (is_full_[kDensity] && is_in_hand(e)) return;
  leaves_.insert(e);
}

void HitDensity::drop_unless_wanted(Seen e) {
  Record& r = blocks_[e];
  if (r.is_resident() || r.shadows != 0) return;
  if (!r.is_sample || !r.is_named || r.used_at == 0) return forget(e);
  r.is_ghost = true;
  blocks_.link(e, kGhosts, Shadow::kLru);
  ++ghosts_;
  while (ghosts_ > space()) {
    const Seen oldest = blocks_.newer(kGhosts, Shadow::kLru);
    unghost(oldest);
    forget(oldest);
  }
}

void HitDensity::unghost(Seen e) {
  if (!blocks_[e].is_ghost) return;
  blocks_.unlink(e, Shadow::kLru);
  blocks_[e].is_ghost = false;
  --ghosts_;
}

void HitDensity::forget(Seen e) {
  const Record& r = blocks_[e];
  if (r.is_sample && r.used_at != 0) table_.count_loss(r.cls, now_ - r.used_at);
  blocks_.remove(e);
}

void HitDensity::erase(NodeId node) {
  CACHALOT_CHECK(residency_.is_leaf(node));
  if (const std::uint32_t holders = holds_.count(node); holders != 0) end_holds(node, holders);
  const Seen e = seen_of_[node];
  if (e == tail_) finish();
  if (!is_erasing_) space_ = residency_.size();
  is_erasing_ = true;
  // While the shadow we follow holds all we hold, its victim is ours and goes from both.
  const Shadow s = guard_.followed();
  const bool is_shared =
      departed_[index(s)] == 0 && blocks_[e].is_in(s) && blocks_[e].children[index(s)] == 0;
  for (const Shadow t : kShadows) {
    if (blocks_[e].is_in(t)) continue;
    blocks_.unlink(e, t);
    --departed_[index(t)];
  }
  residency_.remove(node);
  seen_of_[node] = kNone;
  blocks_[e].node = kNoNode;
  if (is_shared) {
    leave(e, s);
  } else {
    drop_unless_wanted(e);
  }
}

NodeId HitDensity::victim(NodeId protect) const {
  const auto may_go = [&](Seen e) {
    const NodeId node = blocks_[e].node;
    return node != kNoNode && node != protect && residency_.is_leaf(node) && !holds_.is_held(node);
  };
  // Blocks depart tail first, so the walk ends at once but for protect's path.
  const auto first = [&](Seen head, Shadow s) {
    Seen e = blocks_.newer(head, s);
    while (e != head && !may_go(e)) e = blocks_.newer(e, s);
    return e == head ? kNoNode : blocks_[e].node;
  };
  const Shadow s = guard_.followed();
  NodeId node = first(kDeparted, s);
  if (node == kNoNode && s == Shadow::kDensity) {
    const Seen e = leaves_.least();
    if (e != kNone && may_go(e)) node = blocks_[e].node;
  }
  if (node == kNoNode) node = first(kOrder, Shadow::kLru);
  if (node == kNoNode) node = first(kDeparted, Shadow::kLru);
  return node;
}

// What is held stands in no list: no walk meets it.
void HitDensity::hold(NodeId node) {
  for (; node != kNoNode; node = residency_.parent(node)) {
    if (!holds_.add(node, residency_.capacity_nodes())) continue;
    const Seen e = seen_of_[node];
    if (blocks_.is_listed(e, Shadow::kLru)) blocks_.unlink(e, Shadow::kLru);
    if (!blocks_.is_listed(e, Shadow::kDensity)) continue;
    if (blocks_[e].is_in(Shadow::kDensity)) {
      leaves_.erase(e);
    } else {
      blocks_.unlink(e, Shadow::kDensity);
    }
  }
}

// Tail first, so that a parent comes to stand on the newer side.
void HitDensity::end_holds(NodeId node, std::uint32_t holders) {
  for (; node != kNoNode; node = residency_.parent(node)) {
    if (!holds_.remove(node, holders)) continue;
    const Seen e = seen_of_[node];
    blocks_.link(e, blocks_[e].is_in(Shadow::kLru) ? kOrder : kDeparted, Shadow::kLru);
    if (!blocks_[e].is_in(Shadow::kDensity)) {
      blocks_.link(e, kDeparted, Shadow::kDensity);
    } else {
      expose(e);
    }
  }
}

// The request in hand is over: its path is of one class and age now.
void HitDensity::finish() {
  if (tail_ == kNone) return;
  const Seen tail = std::exchange(tail_, kNone);
  now_ += depth_;
  leaves_.open(now_);
  const std::uint32_t turn = std::min(std::max(turn_, new_turn_), kTurns - 1);
  for (Seen e = tail; e != kNone; e = blocks_[e].parent) {
    Record& r = blocks_[e];
    if (r.is_sample && r.used_at != 0) table_.count_use(r.cls, now_ - r.used_at);
    r.cls = static_cast<std::uint8_t>(2 * turn + (e == tail ? 1 : 0));
    r.used_at = now_;
  }
  Seen leaf = tail;  // of the density shadow, which may hold less of the path
  while (leaf != kNone && !blocks_[leaf].is_in(Shadow::kDensity)) leaf = blocks_[leaf].parent;
  if (leaf != kNone) expose(leaf);
  ShadowGuard::Request request{.blocks = depth_,
                               .hits = own_hits_,
                               .in_shadow = hits_,
                               .missing = {},
                               .departed = departed_};
  for (const Shadow s : kShadows) {
    request.missing[index(s)] = size_[index(s)] + departed_[index(s)] - residency_.size();
  }
  guard_.judge(request);
  if (now_ >= next_learn_) learn();
}

void HitDensity::learn() {
  next_learn_ = now_ + std::max<std::uint64_t>(kLearnEvery, space_);
  DensityTable::Counts waiting{};
  blocks_.for_each([&](Seen, const Record& r) {
    if (r.is_sample && r.used_at != 0) waiting[r.cls][DensityTable::bin(now_ - r.used_at)] += 1;
  });
  table_.learn(waiting, now_);
}

bool HitDensity::is_valid() const {
  if (!residency_.is_valid() || !blocks_.is_valid() || !leaves_.is_valid()) return false;
  std::array<std::vector<std::uint32_t>, 2> children;
  std::array<std::uint32_t, 2> size = {0, 0}, departed = {0, 0};
  std::uint32_t ghosts = 0, residents = 0, listed = 0;
  bool is_valid = true;
  const auto check = [&](bool condition) { is_valid = is_valid && condition; };
  blocks_.for_each([&](Seen e, const Record& r) {
    for (auto& count : children) count.resize(std::max<std::size_t>(count.size(), e + 1), 0);
    check(r.is_ghost == (!r.is_resident() && r.shadows == 0));
    ghosts += r.is_ghost ? 1 : 0;
    if (r.is_resident()) {
      ++residents;
      check(residency_.contains(r.node) && seen_of_[r.node] == e);
      if (!is_valid) return;
      const NodeId parent = residency_.parent(r.node);
      check(r.parent == (parent == kNoNode ? kNone : seen_of_[parent]));
    }
    for (const Shadow s : kShadows) {
      if (r.is_in(s)) {
        ++size[index(s)];
        if (r.parent == kNone) continue;
        check(blocks_[r.parent].is_in(s));
        auto& count = children[index(s)];
        count.resize(std::max<std::size_t>(count.size(), r.parent + 1), 0);
        ++count[r.parent];
      } else if (r.is_resident()) {
        ++departed[index(s)];
        check(blocks_.is_listed(e, s) != is_held(r));
      }
    }
    if (r.is_in(Shadow::kLru)) {
      check(blocks_.is_listed(e, Shadow::kLru) != is_held(r));
      listed += is_held(r) ? 0 : 1;
    }
  });
  if (!is_valid || residents != residency_.size() || size != size_ || departed != departed_)
    return false;
  if (ghosts != ghosts_ || ghosts > space()) return false;
  blocks_.for_each([&](Seen e, const Record& r) {
    for (const Shadow s : kShadows) {
      if (r.is_in(s)) check(r.children[index(s)] == children[index(s)][e]);
    }
    if (!r.is_in(Shadow::kDensity)) return;
    const bool is_leaf = r.children[kDensity] == 0 && !is_held(r);
    check(blocks_.is_listed(e, Shadow::kDensity) ? is_leaf : !is_leaf || is_in_hand(e));
  });
  std::vector<bool> passed(children[0].size(), false);
  for (Seen e = blocks_.newer(kOrder, Shadow::kLru); e != kOrder;
       e = blocks_.newer(e, Shadow::kLru), --listed) {
    const Record& r = blocks_[e];
    if (!r.is_in(Shadow::kLru) || (r.parent != kNone && passed[r.parent])) return false;
    passed[e] = true;
  }
  return is_valid && listed == 0;
}

}  // namespace cachalot::eviction
