// Whether a backend is in use. After some failures in a row it is not, so that no call waits for it.
//
// Then tries are admitted, at first after a second. A try that fails again doubles the pause, up to a minute, and so
// does an outage that begins within a minute of the last one's end: what answers, and fails all the same, is not in and
// out of use each second.
//
// @threads any
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <mutex>

namespace cachalot::storage {

// What a report changed.
enum class OutageChange { kNone, kBegan, kEnded };

// Times are of one clock, in ns.
class Breaker {
 public:
  static constexpr std::uint32_t kFailures = 3;
  static constexpr std::uint64_t kFirstPauseNs = 1'000'000'000, kLongestPauseNs = 60'000'000'000;

  // The outcome of a call.
  OutageChange report(bool has_worked, std::uint64_t now_ns) {
    const std::lock_guard lock(mutex_);
    if (has_worked) {
      failures_ = 0;
      if (!is_outage_) return OutageChange::kNone;
      is_outage_ = false;
      ended_ns_ = now_ns;
      is_closed_.store(true, std::memory_order_relaxed);
      return OutageChange::kEnded;
    }
    if (++failures_ < kFailures) return OutageChange::kNone;
    const bool begins = !is_outage_;
    const bool is_again = begins ? ended_ns_ != 0 && now_ns < ended_ns_ + kLongestPauseNs
                                 : is_closed_.load(std::memory_order_relaxed);
    if (begins) outages_.fetch_add(1, std::memory_order_relaxed);
    if (begins && !is_again) pause_ns_ = kFirstPauseNs;
    is_outage_ = true;
    is_closed_.store(false, std::memory_order_relaxed);
    if (is_again) pause_ns_ = std::min(pause_ns_ * 2, kLongestPauseNs);
    if (begins || is_again) due_ns_ = now_ns + pause_ns_;
    return begins ? OutageChange::kBegan : OutageChange::kNone;
  }
  // Whether it is time for a try.
  bool is_due(std::uint64_t now_ns) const {
    const std::lock_guard lock(mutex_);
    return !is_closed_.load(std::memory_order_relaxed) && now_ns >= due_ns_;
  }
  // Lets calls try the backend. The outage ends with the first that works, and goes on with the first that fails.
  void admit_trial() {
    const std::lock_guard lock(mutex_);
    failures_ = kFailures - 1;
    is_closed_.store(true, std::memory_order_relaxed);
  }
  // The backend does not even answer: as soon as it does, it is time for a try.
  void forget_pause() {
    const std::lock_guard lock(mutex_);
    pause_ns_ = kFirstPauseNs;
    due_ns_ = 0;
  }

  // Whether calls may use the backend. Each reports its outcome.
  bool is_closed() const { return is_closed_.load(std::memory_order_relaxed); }
  std::uint64_t outages() const { return outages_.load(std::memory_order_relaxed); }

 private:
  // Relaxed: they only steer which call tries, and nothing is published through them.
  std::atomic<bool> is_closed_{true};
  std::atomic<std::uint64_t> outages_{0};
  mutable std::mutex mutex_;    // all below
  std::uint32_t failures_ = 0;  // in a row
  bool is_outage_ = false;      // also while a try is admitted
  std::uint64_t pause_ns_ = kFirstPauseNs;
  std::uint64_t due_ns_ = 0;    // the next try
  std::uint64_t ended_ns_ = 0;  // the last outage; 0: none yet
};

}  // namespace cachalot::storage
