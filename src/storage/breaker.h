// Whether a backend is in use. After some failures in a row it is not, so that no call waits for it.
//
// @threads any
#pragma once

#include <atomic>
#include <cstdint>

namespace cachalot::storage {

// What a report changed.
enum class OutageChange { kNone, kBegan, kEnded };

class Breaker {
 public:
  static constexpr std::uint32_t kFailures = 3;

  // The outcome of a call.
  OutageChange report(bool has_worked) {
    if (has_worked) {
      failures_.store(0, std::memory_order_relaxed);
      return is_outage_.exchange(false, std::memory_order_relaxed) ? OutageChange::kEnded
                                                                   : OutageChange::kNone;
    }
    if (failures_.fetch_add(1, std::memory_order_relaxed) + 1 != kFailures)
      return OutageChange::kNone;
    if (is_outage_.exchange(true, std::memory_order_relaxed)) return OutageChange::kNone;
    outages_.fetch_add(1, std::memory_order_relaxed);
    return OutageChange::kBegan;
  }
  // Lets calls try the backend. The outage ends with the first that works, and goes on with the first that fails.
  void admit_trial() { failures_.store(kFailures - 1, std::memory_order_relaxed); }

  // Whether calls may use the backend. Each reports its outcome.
  bool is_closed() const { return failures_.load(std::memory_order_relaxed) < kFailures; }
  std::uint64_t outages() const { return outages_.load(std::memory_order_relaxed); }

 private:
  // Relaxed: they only steer which call tries, and nothing is published through them.
  std::atomic<std::uint32_t> failures_{0};  // in a row
  std::atomic<bool> is_outage_{false};
  std::atomic<std::uint64_t> outages_{0};
};

}  // namespace cachalot::storage
