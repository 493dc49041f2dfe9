// A load from L2 to L1 in flight: how many layers have arrived.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <utility>
#include <vector>

#include "tier/controller/tier_copies.h"

namespace cachalot::tier {

// @threads any
class LoadJob {
 public:
  explicit LoadJob(std::vector<SlotPair> blocks) : blocks_(std::move(blocks)) {}

  const std::vector<SlotPair>& blocks() const { return blocks_; }

  void finish_layer() {
    {
      const std::lock_guard lock(mutex_);
      ++layers_;
    }
    changed_.notify_all();
  }
  void wait_layer(std::uint32_t layer) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return layers_ > layer; });
  }

 private:
  const std::vector<SlotPair> blocks_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::uint32_t layers_ = 0;  // the first ones, which have arrived
};

}  // namespace cachalot::tier
