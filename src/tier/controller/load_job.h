// A load from L2 to L1 in flight: which layers have arrived, or, on a GPU, where in a stream they will have.
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

  // One more layer is there for whatever runs after `arrival`. null: it is there
  void finish_layer(Mark arrival) {
    {
      const std::lock_guard lock(mutex_);
      arrivals_.push_back(std::move(arrival));
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
  // @return the arrival of `layer`
  // @errors of the load, if it failed before this layer
  Result<Mark> wait_layer(std::uint32_t layer) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return arrivals_.size() > layer || !outcome_; });
    if (arrivals_.size() <= layer) return outcome_.error();
    return arrivals_[layer];
  }

 private:
  const std::vector<SlotPair> blocks_;
  const Mark mark_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<Mark> arrivals_;  // of the first layers
  Status outcome_;
};

}  // namespace cachalot::tier
