// Blocks that the fetcher has brought and that no client has used since: to count what was fetched in vain. Changes of the
// pool that were lost leave some behind, so their number is bounded.
//
// @threads any
#pragma once

#include <atomic>
#include <cstdint>
#include <mutex>
#include <unordered_set>

#include "storage/object.h"

namespace cachalot::node {

class FetchedBlocks {
 public:
  // @param is_counting  false: nothing would take them
  // @param most         more than there can be in the pool and on their way; then all are forgotten
  FetchedBlocks(bool is_counting, std::size_t most) : is_counting_(is_counting), most_(most) {}

  // Before the block is published.
  void add(const storage::ObjectKey& key) {
    if (!is_counting_) return;
    const std::lock_guard lock(mutex_);
    if (unused_.size() >= most_) unused_.clear();
    unused_.insert(key);
  }
  bool contains(const storage::ObjectKey& key) const {
    const std::lock_guard lock(mutex_);
    return unused_.contains(key);
  }
  // @return false: it was not fetched, or was used before
  bool take(const storage::ObjectKey& key) {
    const std::lock_guard lock(mutex_);
    return unused_.erase(key) != 0;
  }

 private:
  const bool is_counting_;
  const std::size_t most_;
  mutable std::mutex mutex_;
  std::unordered_set<storage::ObjectKey> unused_;
};

}  // namespace cachalot::node
