// The record of a node: a run of whole pages, where it hangs, and where the KV of its pages is.
#pragma once

#include <cachalot/hash.h>

#include <array>
#include <cstdint>

#include "eviction/leaf_order.h"
#include "tier/radix/page_items.h"
#include "tier/radix/radix_key.h"
#include "tier/radix/tier.h"

namespace cachalot::tier {

// A write-back to host memory in flight; 0: none.
using BackupTicket = std::uint64_t;

// 192 bytes: what a walk reads comes first. The root of a namespace has no pages.
struct alignas(64) RadixNode {
  PageItems<Token> tokens;
  NodeId parent = eviction::kAbsentNode;
  NodeId first_child = kNoNode;
  NodeId next_sibling = kNoNode;
  NodeId previous_sibling = kNoNode;
  std::uint32_t pages = 0;
  std::uint32_t children = 0;
  std::array<std::uint32_t, kTiers> tier_children = {};  // children that are in the tier

  // depth: pages before this node. uses: inserts. Its clock is the tree's.
  eviction::LeafHistory history;
  std::array<std::uint32_t, kTiers> locks = {};  // own locks, and children that have any

  std::array<PageItems<Slot>, kTiers> slots;  // one a page; empty: not in the tier
  PageItems<BlockHash> hashes;                // one a page; empty: not known
  BackupTicket backup = 0;

  bool exists() const { return parent != eviction::kAbsentNode; }
  bool is_root() const { return pages == 0; }
  bool is_in(Tier tier) const { return !slots[index(tier)].empty(); }
  bool is_locked(Tier tier) const { return locks[index(tier)] != 0; }
};

static_assert(sizeof(RadixNode) == 192);

}  // namespace cachalot::tier
