#include "sim/engine/block_pool.h"

#include "base/check.h"

namespace cachalot::sim {

BlockPool::BlockPool(std::uint32_t blocks, bool prefix_caching)
    : prefix_caching_(prefix_caching),
      references_(blocks, 0),
      generations_(blocks, 0),
      next_(blocks, kNone),
      previous_(blocks, kNone),
      keys_(blocks, 0),
      has_key_(blocks, false) {
  for (std::uint32_t block = 0; block < blocks; ++block) append_free(block);
}

void BlockPool::append_free(std::uint32_t block) {
  next_[block] = kNone;
  previous_[block] = last_free_;
  (last_free_ == kNone ? first_free_ : next_[last_free_]) = block;
  last_free_ = block;
  ++free_;
}

void BlockPool::remove_free(std::uint32_t block) {
  const std::uint32_t before = previous_[block], behind = next_[block];
  (before == kNone ? first_free_ : next_[before]) = behind;
  (behind == kNone ? last_free_ : previous_[behind]) = before;
  --free_;
}

void BlockPool::find(std::span<const Held> held, std::span<const std::uint64_t> keys,
                     std::uint64_t most, std::vector<std::uint32_t>& found,
                     std::uint32_t& free) const {
  found.clear();
  free = 0;
  if (!prefix_caching_) return;
  while (found.size() < most) {
    const std::size_t i = found.size();
    std::uint32_t block = kNone;
    if (i < held.size() && generations_[held[i].block] == held[i].generation) {
      block = held[i].block;
    } else if (i < keys.size()) {
      const auto known = by_key_.find(keys[i]);
      if (known != by_key_.end()) block = known->second;
    }
    if (block == kNone) return;
    if (references_[block] == 0) ++free;
    found.push_back(block);
  }
}

void BlockPool::refer(std::uint32_t block) {
  if (references_[block]++ == 0) remove_free(block);
}

void BlockPool::allocate(std::uint32_t count, std::vector<std::uint32_t>& blocks) {
  CACHALOT_CHECK(count <= free_);
  for (; count != 0; --count) {
    const std::uint32_t block = first_free_;
    remove_free(block);
    ++generations_[block];
    if (has_key_[block]) {
      by_key_.erase(keys_[block]);
      has_key_[block] = false;
    }
    references_[block] = 1;
    blocks.push_back(block);
  }
}

void BlockPool::name(std::uint32_t block, std::uint64_t key) {
  if (!prefix_caching_ || has_key_[block]) return;
  if (!by_key_.emplace(key, block).second) return;
  keys_[block] = key;
  has_key_[block] = true;
}

void BlockPool::release(std::span<const std::uint32_t> blocks) {
  for (std::size_t i = blocks.size(); i != 0; --i) {
    const std::uint32_t block = blocks[i - 1];
    CACHALOT_CHECK(references_[block] != 0);
    if (--references_[block] == 0) append_free(block);
  }
}

bool BlockPool::is_valid() const {
  std::uint32_t queued = 0, previous = kNone;
  for (std::uint32_t block = first_free_; block != kNone; block = next_[block]) {
    if (references_[block] != 0 || previous_[block] != previous || ++queued > blocks())
      return false;
    previous = block;
  }
  std::uint32_t unreferenced = 0, named = 0;
  for (std::uint32_t block = 0; block < blocks(); ++block) {
    if (references_[block] == 0) ++unreferenced;
    if (!has_key_[block]) continue;
    ++named;
    const auto known = by_key_.find(keys_[block]);
    if (known == by_key_.end() || known->second != block) return false;
  }
  return queued == free_ && unreferenced == free_ && named == by_key_.size() &&
         previous == last_free_;
}

}  // namespace cachalot::sim
