#include "os/futex.h"

#include <linux/futex.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <climits>

namespace cachalot::os {
namespace {

static_assert(sizeof(std::atomic<std::uint32_t>) == sizeof(std::uint32_t));

}  // namespace

WaitEnd futex_wait(const std::atomic<std::uint32_t>& word, std::uint32_t expected,
                   std::uint64_t timeout_ns) {
  timespec timeout{};
  timeout.tv_sec = static_cast<time_t>(timeout_ns / 1'000'000'000u);
  timeout.tv_nsec = static_cast<long>(timeout_ns % 1'000'000'000u);
  const timespec* limit = timeout_ns == kNoTimeout ? nullptr : &timeout;
  // Not FUTEX_WAIT_PRIVATE: that one finds sleepers of the same address space only.
  if (syscall(SYS_futex, &word, FUTEX_WAIT, expected, limit, nullptr, 0) == 0) {
    return WaitEnd::kWoken;
  }
  switch (errno) {
    case EAGAIN:
      return WaitEnd::kChanged;
    case ETIMEDOUT:
      return WaitEnd::kTimedOut;
    case EINTR:
      return WaitEnd::kWoken;
    default:
      return WaitEnd::kUnsupported;
  }
}

std::uint32_t futex_wake(const std::atomic<std::uint32_t>& word, std::uint32_t count) {
  const int most = static_cast<int>(std::min<std::uint32_t>(count, INT_MAX));
  const long woken = syscall(SYS_futex, &word, FUTEX_WAKE, most, nullptr, nullptr, 0);
  return woken > 0 ? static_cast<std::uint32_t>(woken) : 0;
}

}  // namespace cachalot::os
