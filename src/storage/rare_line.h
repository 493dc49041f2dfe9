// Lets one log line a minute through, for conditions that may last for hours.
//
// @threads any
#pragma once

#include <atomic>
#include <cstdint>

#include "base/clock.h"

namespace cachalot::storage {

class RareLine {
 public:
  // Whether the line is due. True for one caller only.
  bool is_due() {
    constexpr std::uint64_t kPauseNs = 60'000'000'000;
    std::uint64_t told_ns = told_ns_.load(std::memory_order_relaxed);
    const std::uint64_t now_ns = base::SteadyClock::read();
    if (told_ns != 0 && now_ns - told_ns < kPauseNs) return false;
    return told_ns_.compare_exchange_strong(told_ns, now_ns, std::memory_order_relaxed);
  }

 private:
  std::atomic<std::uint64_t> told_ns_{0};
};

}  // namespace cachalot::storage
