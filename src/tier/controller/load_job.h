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
  // @param mark  the load follows it
  LoadJob(std::vector<SlotPair> blocks, Mark mark)
      : blocks_(std::move(blocks)), mark_(std::move(mark)) {}

  const std::vector<SlotPair>& blocks() const { return blocks_; }
  const Mark& mark() const { return mark_; }

  void finish_layer() {
    {
      const std::lock_guard lock(mutex_);
      ++layers_;
    }
    changed_.notify_all();
  }
  // No more layers arrive.
  void fail(const Error& why) {
    {
      const std::lock_guard lock(mutex_);
      outcome_ = why;
    }
    changed_.notify_all();
  }
  // @errors of the load, if it failed before this layer
  Status wait_layer(std::uint32_t layer) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return layers_ > layer || !outcome_; });
    return layers_ > layer ? Status() : outcome_;
  }

 private:
  const std::vector<SlotPair> blocks_;
  const Mark mark_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::uint32_t layers_ = 0;  // the first ones, which have arrived
  Status outcome_;
};

}  // namespace cachalot::tier
