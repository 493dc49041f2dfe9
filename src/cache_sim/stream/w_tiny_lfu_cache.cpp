#include "cache_sim/stream/w_tiny_lfu_cache.h"

#include <algorithm>

namespace cachalot::cache_sim {

WTinyLfuCache::WTinyLfuCache(std::uint64_t capacity_blocks)
    : window_capacity_(std::max<std::uint64_t>(1, capacity_blocks / 100)),
      main_capacity_(capacity_blocks - window_capacity_),
      protected_capacity_(main_capacity_ / 5 * 4 + main_capacity_ % 5 * 4 / 5) {
  if (__builtin_mul_overflow(capacity_blocks, std::uint64_t{10}, &references_per_age_)) {
    references_per_age_ = ~std::uint64_t{0};
  }
}

bool WTinyLfuCache::access(std::uint32_t block, std::uint32_t) {
  count(block);
  if (const eviction::NodeId node = nodes_.find(block); node != eviction::kNoNode) {
    promote(node);
    return true;
  }
  const eviction::NodeId node = nodes_.add(block);
  segments_.grow(nodes_.room());
  segments_.push_newest(kWindow, node);
  if (segments_.size(kWindow) > window_capacity_) leave_window();
  return false;
}

void WTinyLfuCache::count(std::uint32_t block) {
  if (++references_ >= references_per_age_) {
    references_ /= 2;
    ++age_;
  }
  if (block >= counts_.size()) counts_.resize(std::max<std::size_t>(1024, std::size_t{block} * 2));
  const std::uint32_t before = uses(block);
  counts_[block] = {before == 0xffffffffu ? before : before + 1, age_};
}

std::uint32_t WTinyLfuCache::uses(std::uint32_t block) const {
  const Count& count = counts_[block];
  const std::uint32_t halvings = age_ - count.age;
  return halvings < 32 ? count.uses >> halvings : 0;
}

void WTinyLfuCache::promote(eviction::NodeId node) {
  if (segments_.list_of(node) == kWindow) return segments_.move_to_newest(kWindow, node);
  segments_.move_to_newest(kProtected, node);
  if (segments_.size(kProtected) <= protected_capacity_) return;
  segments_.move_to_newest(kProbation, segments_.oldest(kProtected));
}

// The window's oldest goes to main: if that is full, only in the place of one that is asked for less.
void WTinyLfuCache::leave_window() {
  const eviction::NodeId candidate = segments_.oldest(kWindow);
  const std::uint64_t in_main =
      std::uint64_t{segments_.size(kProbation)} + segments_.size(kProtected);
  if (in_main >= main_capacity_) {
    eviction::NodeId victim = segments_.oldest(kProbation);
    if (victim == eviction::kNoNode) victim = segments_.oldest(kProtected);
    if (victim == eviction::kNoNode ||
        uses(nodes_.block(candidate)) <= uses(nodes_.block(victim))) {
      return drop(candidate);
    }
    drop(victim);
  }
  segments_.move_to_newest(kProbation, candidate);
}

void WTinyLfuCache::drop(eviction::NodeId node) {
  segments_.erase(node);
  nodes_.remove(node);
}

}  // namespace cachalot::cache_sim
