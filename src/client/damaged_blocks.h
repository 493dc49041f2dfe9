// The uses of blocks in which this process found wrong bytes: the last 64.
//
// @threads any
#pragma once

#include <algorithm>
#include <cstddef>
#include <deque>
#include <mutex>
#include <optional>
#include <span>
#include <vector>

#include "pool/reader/directory.h"

namespace cachalot::client {

class DamagedBlocks {
 public:
  // @return false: this use is noted already
  bool add(const pool::Entry& entry) {
    const std::lock_guard lock(mutex_);
    for (const pool::Entry& known : entries_) {
      if (pool::same_entry(known, entry)) return false;
    }
    if (entries_.size() == kMost) entries_.pop_front();
    entries_.push_back(entry);
    return true;
  }
  std::optional<pool::Entry> find(const BlockHash& hash) const {
    const std::lock_guard lock(mutex_);
    const auto at = std::find_if(entries_.rbegin(), entries_.rend(),
                                 [&](const pool::Entry& entry) { return hash_of(entry) == hash; });
    if (at == entries_.rend()) return {};
    return *at;
  }
  void forget(const BlockHash& hash) {
    const std::lock_guard lock(mutex_);
    std::erase_if(entries_, [&](const pool::Entry& entry) { return hash_of(entry) == hash; });
  }
  // The first of these hashes that is noted.
  std::optional<BlockHash> first_of(std::span<const BlockHash> hashes) const {
    const std::lock_guard lock(mutex_);
    if (entries_.empty()) return {};
    const auto at = std::find_if(hashes.begin(), hashes.end(), [&](const BlockHash& hash) {
      return std::any_of(entries_.begin(), entries_.end(),
                         [&](const pool::Entry& entry) { return hash_of(entry) == hash; });
    });
    if (at == hashes.end()) return {};
    return *at;
  }

 private:
  static constexpr std::size_t kMost = 64;
  static BlockHash hash_of(const pool::Entry& entry) { return {entry.hash_low, entry.hash_high}; }

  mutable std::mutex mutex_;
  std::deque<pool::Entry> entries_;
};

}  // namespace cachalot::client
