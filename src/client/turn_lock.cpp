#include "client/turn_lock.h"

#include <algorithm>
#include <chrono>

#include "base/clock.h"

namespace cachalot::client {

Deadline Deadline::after(std::uint64_t timeout_ns) {
  Deadline deadline;
  const std::uint64_t now_ns = base::SteadyClock::read();
  deadline.at_ns_ = timeout_ns > kNoTimeout - now_ns ? kNoTimeout : now_ns + timeout_ns;
  return deadline;
}

bool Deadline::is_over() const {
  return at_ns_ != kNoTimeout && base::SteadyClock::read() >= at_ns_;
}

Status Deadline::check(const char* what) const {
  if (!is_over()) return {};
  return Error::make(Code::kTimeout, "%s: the time given has passed", what);
}

bool TurnLock::lock(const Deadline& deadline) {
  std::unique_lock lock(mutex_);
  const auto is_free = [this] { return !is_taken_; };
  if (deadline.at_ns() == kNoTimeout) {
    ended_.wait(lock, is_free);
  } else {
    const std::uint64_t now_ns = base::SteadyClock::read();
    const std::uint64_t left_ns = deadline.at_ns() - std::min(now_ns, deadline.at_ns());
    constexpr std::uint64_t kLongestNs = 365ull * 24 * 3600 * 1'000'000'000;
    if (!ended_.wait_for(lock, std::chrono::nanoseconds(std::min(left_ns, kLongestNs)), is_free))
      return false;
  }
  is_taken_ = true;
  return true;
}

bool TurnLock::try_lock() {
  const std::lock_guard lock(mutex_);
  if (is_taken_) return false;
  is_taken_ = true;
  return true;
}

void TurnLock::unlock() {
  {
    const std::lock_guard lock(mutex_);
    is_taken_ = false;
  }
  ended_.notify_one();
}

}  // namespace cachalot::client
