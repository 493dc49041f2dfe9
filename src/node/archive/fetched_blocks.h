// Blocks that the fetcher has brought and that no client has used since: to count what was fetched in vain.
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
  explicit FetchedBlocks(bool is_counting) : is_counting_(is_counting) {}

  // Before the block is published.
  void add(const storage::ObjectKey& key) {
    if (!is_counting_) return;
    const std::lock_guard lock(mutex_);
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
  mutable std::mutex mutex_;
  std::unordered_set<storage::ObjectKey> unused_;
};

}  // namespace cachalot::node
