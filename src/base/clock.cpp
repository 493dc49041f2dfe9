#include "base/clock.h"

#include <time.h>

namespace cachalot::base {

std::uint64_t SteadyClock::read() {
  timespec now{};
  clock_gettime(CLOCK_MONOTONIC, &now);
  return static_cast<std::uint64_t>(now.tv_sec) * 1'000'000'000u +
         static_cast<std::uint64_t>(now.tv_nsec);
}

}  // namespace cachalot::base
