// Eviction of the leaf that promises the fewest hits for its time, guarded so that it is never much
// worse than the least recently used.
//
// What a leaf promises is learned (DensityTable) from the past of its class, which is what a tree
// of prefixes knows about a block: the turn of its last request (how often its chain was
// continued), and whether it was that request's last block (often partial, and never seen again).
// One block in kSampleEvery is a sample. A sample that nothing holds any more is remembered for a
// while by name, as a ghost: otherwise a small cache would never hear of the uses that come after
// an eviction.
//
// Learning can err. So two shadows, in names only, see the same requests: what leaf LRU would hold,
// and what density would hold. The cache follows the one that ShadowGuard says. To follow a shadow
// is to evict what it does not hold, oldest departure first, and then what it evicts itself.
//
// A request is a touch() of its resident prefix and insert()s of the rest, each below the last. It
// is over with the next touch() of something else or the next root; only then does time go on, by
// the blocks of its path, and are its blocks of the class that it gives them.
//
// 1. A resident block is seen once, under its node; others that are seen have no node.
// 2. The parent of a block in a shadow is in that shadow, and `children` counts those there.
// 3. The LRU shadow's blocks stand in one list, a parent on the newer side of its children. The
//    density shadow's leaves stand in LeafBuckets. (See LeafLru for why that is LRU.)
// 4. A resident block that a shadow does not hold stands in that shadow's list of the departed.
// 5. But what is held (hold()), and the density leaf of the request in hand, stand in none of
//    these.
// 6. Neither shadow holds more than the cache did when it last had to evict, or does now.
// 7. What is neither resident nor in a shadow is a ghost: a sample with a name, at most as many as
//    6 says.
//
// 64 bytes a seen block and 11 to 21 of names; two to three of them a block of the cache, four at
// most; 12 bytes a node besides, and 90 KiB in all for lists and tables.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "eviction/eviction_policy.h"
#include "eviction/holds.h"
#include "eviction/leaf_buckets.h"
#include "eviction/residency.h"
#include "eviction/seen_blocks.h"
#include "eviction/shadow_guard.h"
#include "eviction/structure/density_table.h"

namespace cachalot::eviction {

// @threads one at a time
// @cost    touch and insert: three passes over the request's path in all; victim: O(1) mostly, a
//          look at each bucket where the last one ran empty; hold and release: O(depth)
class HitDensity final : public EvictionPolicy {
 public:
  explicit HitDensity(std::uint32_t capacity_nodes);

  const char* name() const override { return policy_name(PolicyKind::kHitDensity); }
  const Residency& residency() const override { return residency_; }
  void grow(std::uint32_t capacity_nodes) override;

  void insert(NodeId node, NodeId parent, std::uint64_t name) override;
  void touch(NodeId node) override;
  void erase(NodeId node) override;
  NodeId victim(NodeId protect) const override;
  void hold(NodeId node) override;
  void release(NodeId node) override { end_holds(node, 1); }

  // For tests and reports. The current request is not counted yet.
  bool follows_density() const { return guard_.followed() == Shadow::kDensity; }
  std::uint64_t shadow_hits(Shadow s) const { return guard_.hits(s); }

  // Checks the invariants and those of the parts. O(blocks), allocates.
  bool is_valid() const override;

 private:
  using Seen = SeenBlocks::Seen;
  using Record = SeenBlocks::Record;
  static constexpr Seen kNone = SeenBlocks::kNone;
  static constexpr std::size_t kLru = 0, kDensity = 1;

  // A list of ghosts as long as the cache then goes back eight times as far as the cache does. Told
  // by the turn in which they came and not by name: naming otherwise must not change a victim.
  static constexpr std::uint64_t kSampleEvery = 8;
  // References from one learning to the next, or a cache's worth if that is more.
  static constexpr std::uint64_t kLearnEvery = 4096;
  // Turns told apart; later ones are as the last.
  static constexpr std::uint32_t kTurns = DensityTable::kClasses / 2;

  // Heads of lists. The ghosts' list uses the links of Shadow::kLru.
  static constexpr Seen kOrder = 0;
  static constexpr Seen kDeparted = 1;  // of either shadow
  static constexpr Seen kGhosts = 2;
  static constexpr Seen kBuckets = 3;
  static constexpr std::uint32_t kHeads = kBuckets + LeafBuckets::kHeads;

  std::uint32_t space() const { return space_ > residency_.size() ? space_ : residency_.size(); }
  bool is_held(const Record& r) const { return r.is_resident() && holds_.is_held(r.node); }
  bool is_in_hand(Seen e) const;

  void start();
  void use(Seen e, bool was_resident);
  bool use_in(Seen e, Shadow s, bool was_resident);
  void leave(Seen e, Shadow s);
  Seen shadow_victim(Shadow s, Seen tail) const;
  void depart(Seen e, Shadow s);
  void expose(Seen e);
  void drop_unless_wanted(Seen e);
  void forget(Seen e);
  void unghost(Seen e);
  void finish();
  void learn();
  void end_holds(NodeId node, std::uint32_t holders);

  Residency residency_;
  Holds holds_;  // of a node and of all below it
  SeenBlocks blocks_;
  base::HugeVector<Seen> seen_of_;  // of a resident node
  DensityTable table_;
  LeafBuckets leaves_;
  ShadowGuard guard_;

  std::uint64_t made_ = 0;
  std::uint64_t now_ = 0;  // references
  std::uint64_t next_learn_ = kLearnEvery;
  std::array<std::uint32_t, 2> size_ = {0, 0};
  std::array<std::uint32_t, 2> departed_ = {0, 0};  // residents that are not in the shadow
  std::uint32_t ghosts_ = 0;
  std::uint32_t space_ = 0;  // residents there were when the last run of erasures began
  bool is_erasing_ = false;

  // The request in hand.
  Seen tail_ = kNone;
  std::vector<Seen> path_;
  std::array<bool, 2> is_full_ = {false, false};  // of its own path: the rest is not stored
  std::array<std::uint32_t, 2> hits_ = {0, 0};
  std::uint32_t own_hits_ = 0;
  std::uint32_t depth_ = 0;
  std::uint32_t turn_ = 0;      // the latest that stored a known block of the path
  std::uint32_t new_turn_ = 0;  // that of its new blocks; 0: none
};

}  // namespace cachalot::eviction
