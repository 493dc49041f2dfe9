// The tiers a radix tree keeps book of: device memory (L1) and host memory (L2).
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "eviction/structure/node.h"

namespace cachalot::tier {

enum class Tier : std::uint8_t { kDevice, kHost };
inline constexpr std::size_t kTiers = 2;
inline constexpr std::size_t index(Tier tier) {
  return static_cast<std::size_t>(tier);
}

// A page's place in the pool of its tier: numbered by the pool's owner.
using Slot = std::uint32_t;

// A node of a tree. Valid until the node is removed; a split leaves it the end of its pages.
using eviction::kNoNode;  // the root: the empty prefix
using eviction::NodeId;

// Slots that the tree no longer uses: the caller returns them to their pools.
struct FreedSlots {
  std::vector<Slot> device;
  std::vector<Slot> host;

  std::vector<Slot>& of(Tier tier) { return tier == Tier::kDevice ? device : host; }
};

// Pages of a tier.
struct TierUse {
  std::uint64_t pages = 0;
  std::uint64_t protected_pages = 0;  // of locked nodes and their ancestors

  std::uint64_t evictable_pages() const { return pages - protected_pages; }
};

}  // namespace cachalot::tier
