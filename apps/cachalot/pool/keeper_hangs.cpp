#include "keeper_hangs.h"

#include <chrono>
#include <thread>

#include "base/clock.h"
#include "pool_report.h"

namespace cachalot::apps {
namespace {

constexpr std::uint64_t kHangsAfterNs = kHangsAfterS * std::uint64_t{1'000'000'000};

}  // namespace

bool keeper_hangs(const pool::Pool& pool, pool::KeeperPulse& pulse) {
  const std::uint64_t silent_ns = pulse.silent_ns(pool.state(), base::SteadyClock::read());
  return silent_ns >= kHangsAfterNs && keeper_serves(pool);
}

bool wait_for_keeper(const pool::Pool& pool, pool::KeeperPulse& pulse) {
  constexpr auto kPause = std::chrono::milliseconds(2);
  const std::uint64_t begin_ns = base::SteadyClock::read();
  pulse.silent_ns(pool.state(), begin_ns);
  while (keeper_serves(pool)) {
    std::this_thread::sleep_for(kPause);
    const std::uint64_t now_ns = base::SteadyClock::read();
    const std::uint64_t silent_ns = pulse.silent_ns(pool.state(), now_ns);
    if (silent_ns >= kHangsAfterNs) return true;
    // It has published since the first look, or there is no count.
    if (silent_ns < now_ns - begin_ns) return false;
  }
  return false;
}

bool keeper_hangs(const pool::Pool& pool) {
  pool::KeeperPulse pulse;
  return wait_for_keeper(pool, pulse);
}

}  // namespace cachalot::apps
