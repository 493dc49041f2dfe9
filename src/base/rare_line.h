// Lets a few log lines a minute through, for what may be repeated for hours.
//
// @threads any
#pragma once

#include <cstdint>
#include <mutex>

#include "base/clock.h"

namespace cachalot::base {

class RareLine {
 public:
  explicit RareLine(unsigned lines_a_minute = 1) : lines_a_minute_(lines_a_minute) {}

  // Whether this line may be written.
  bool is_due() {
    constexpr std::uint64_t kMinuteNs = 60'000'000'000;
    const std::uint64_t now_ns = base::SteadyClock::read();
    const std::lock_guard lock(mutex_);
    if (lines_ == 0 || now_ns - begin_ns_ >= kMinuteNs) {
      begin_ns_ = now_ns;
      lines_ = 0;
    }
    if (lines_ == lines_a_minute_) return false;
    ++lines_;
    return true;
  }

 private:
  const unsigned lines_a_minute_;
  std::mutex mutex_;
  std::uint64_t begin_ns_ = 0;  // of the minute
  unsigned lines_ = 0;          // in it
};

}  // namespace cachalot::base
