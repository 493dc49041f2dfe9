#include "pool/keeper/block_table.h"

#include <algorithm>

namespace cachalot::pool {

void BlockTable::recount() {
  std::fill(std::begin(counts_), std::end(counts_), 0u);
  for (const Use& use : uses_) ++counts_[static_cast<std::size_t>(use.state)];
}

bool BlockTable::is_valid() const {
  std::uint32_t counts[kBlockStates] = {};
  for (const Use& use : uses_) ++counts[static_cast<std::size_t>(use.state)];
  for (std::uint32_t state = 0; state < kBlockStates; ++state) {
    if (counts[state] != counts_[state]) return false;
  }
  if (free_count_ != count(BlockState::kFree)) return false;
  std::vector<bool> seen(uses_.size());
  for (std::size_t i = 0; i < free_count_; ++i) {
    const std::uint32_t block = free_ring_[(free_first_ + i) % free_ring_.size()];
    if (seen[block] || uses_[block].state != BlockState::kFree) return false;
    seen[block] = true;
  }
  return true;
}

}  // namespace cachalot::pool
