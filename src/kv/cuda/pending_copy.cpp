#include "kv/cuda/pending_copy.h"

#include <algorithm>
#include <chrono>
#include <thread>

#include "base/clock.h"
#include "os/topology.h"

namespace cachalot::kv {
namespace {

// With pauses, for others want the driver, too. What takes longer than it should gives the processor away.
constexpr std::uint64_t kPollNs = 200'000, kMostPollNs = 1'000'000, kPauseNs = 2'000;
constexpr int kLeastPolls = 8;  // also where the thread was kept from running meanwhile
// PCIe 5.0 x16. On a faster link a thread sleeps longer than it has to, by less than the copy takes.
constexpr std::uint64_t kBytesPerUs = 55'000;

// Sleeps as long as the copy takes at least, less a thread's late waking.
// @return until when it is worth asking
std::uint64_t sleep_for(std::uint64_t begin_ns, std::uint64_t bytes) {
  const std::uint64_t copying = bytes * 1000 / kBytesPerUs;
  const std::uint64_t end = begin_ns + copying, now = base::SteadyClock::read();
  if (now + kPollNs < end)
    std::this_thread::sleep_for(std::chrono::nanoseconds(end - kPollNs - now));
  return std::max(end, now) + std::clamp(copying / 4, kPollNs, kMostPollNs);
}

int wait_for(const gpu::Driver& driver, gpu::Event event, WaitBy by, std::uint64_t begin_ns,
             std::uint64_t bytes) {
  if (by == WaitBy::kSleeping) return driver.event_synchronize(event);
  const std::uint64_t until = sleep_for(begin_ns, bytes);
  std::uint64_t now = 0;
  for (int polls = 0; polls < kLeastPolls || now < until; ++polls) {
    const int result = driver.event_query(event);
    if (result != gpu::kNotReady) return result;
    const std::uint64_t next = (now = base::SteadyClock::read()) + kPauseNs;
    while (now < next) {
      os::cpu_relax();
      now = base::SteadyClock::read();
    }
  }
  return driver.event_synchronize(event);
}

}  // namespace

PendingCopy::~PendingCopy() {
  static_cast<void>(wait(WaitBy::kSleeping));
}

Result<bool> PendingCopy::is_done() {
  if (slot_ == nullptr) return true;
  const CudaDevice::Entered entered(*work_.device);
  CACHALOT_TRY(entered.status());
  const int result = work_.device->driver().event_query(slot_->event);
  if (result == gpu::kNotReady) return false;
  if (const Status asked = work_.device->check(result, "cuEventQuery"); !asked)
    return error_of_wait(asked.error());
  return true;
}

Status PendingCopy::wait(WaitBy by) {
  if (slot_ == nullptr) return outcome_;
  {
    const CudaDevice::Entered entered(*work_.device);
    outcome_ = entered.status();
    if (outcome_) {
      outcome_ = work_.device->check(
          wait_for(work_.device->driver(), slot_->event, by, work_.begin_ns, work_.bytes),
          "waiting for a copy");
    }
  }
  if (!outcome_) {
    outcome_ = error_of_wait(outcome_.error());
    work_.slots->abandon(std::move(slot_));
    return outcome_;
  }
  work_.slots->give_back(std::move(slot_));
  if (work_.direction == Direction::kGather && work_.domain != nullptr) {
    work_.host.after_gather(*work_.domain);
  }
  work_.host.hash();
  return outcome_;
}

}  // namespace cachalot::kv
