#include "missing_devices.h"

#include "base/clock.h"
#include "base/log.h"

namespace cachalot::apps {

bool MissingDevices::is_due(std::uint64_t now_ns) {
  if (now_ns < next_look_ns_) return false;
  next_look_ns_ = now_ns + kSecondNs;
  return true;
}

void MissingDevices::look(const pool::Pool& pool) {
  waits_since_ns_ = 0;
  has_waited_ = false;
  if (!is_due(base::SteadyClock::read())) return;
  const Status there = pool.check_added_devices();
  if (there || !line_.is_due()) return;
  base::log(base::LogLevel::kWarn, "serve", "this standby cannot open a device of the pool: %s",
            there.error().message);
}

bool MissingDevices::must_wait(const pool::Pool& pool) {
  if (goes_without()) return false;
  const std::uint64_t now_ns = base::SteadyClock::read();
  const bool is_first = waits_since_ns_ == 0;
  if (!is_first && !is_due(now_ns)) return true;
  const Status there = pool.check_added_devices();
  if (there) return false;
  if (is_first) {
    waits_since_ns_ = now_ns;
    next_look_ns_ = now_ns + kSecondNs;
    base::log(base::LogLevel::kError, "serve",
              "the pool has no keeper, and this standby cannot open a device of it: waits: %s",
              there.error().message);
  }
  has_waited_ = patience_ns_ != 0 && now_ns - waits_since_ns_ >= patience_ns_;
  return !has_waited_;
}

}  // namespace cachalot::apps
