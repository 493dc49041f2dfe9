// Whether a backend is in use. After some failures in a row it is not, so that no call waits for it; then one
// call a second may try it.
//
// @threads any
#pragma once

#include <atomic>
#include <cstdint>

#include "base/clock.h"

namespace cachalot::storage {

class Breaker {
 public:
  static constexpr std::uint32_t kFailures = 3;
  static constexpr std::uint64_t kPauseNs = 1'000'000'000;

  // Whether a call may use the backend now. The caller reports its outcome.
  bool admits() {
    if (is_closed()) return true;
    std::uint64_t due_ns = next_probe_ns_.load(std::memory_order_relaxed);
    const std::uint64_t now_ns = base::SteadyClock::read();
    return now_ns >= due_ns && next_probe_ns_.compare_exchange_strong(due_ns, now_ns + kPauseNs);
  }
  void report(bool has_worked) {
    if (has_worked) {
      failures_.store(0, std::memory_order_relaxed);
      return;
    }
    if (failures_.fetch_add(1, std::memory_order_relaxed) + 1 != kFailures) return;
    next_probe_ns_.store(base::SteadyClock::read() + kPauseNs, std::memory_order_relaxed);
    outages_.fetch_add(1, std::memory_order_relaxed);
  }

  bool is_closed() const { return failures_.load(std::memory_order_relaxed) < kFailures; }
  std::uint64_t outages() const { return outages_.load(std::memory_order_relaxed); }

 private:
  // Relaxed: they only steer which call tries, and nothing is published through them.
  std::atomic<std::uint32_t> failures_{0};  // in a row
  std::atomic<std::uint64_t> next_probe_ns_{0};
  std::atomic<std::uint64_t> outages_{0};
};

}  // namespace cachalot::storage
