#include "rpc/waiter.h"

#include <chrono>
#include <thread>

#include "os/futex.h"
#include "os/topology.h"

namespace cachalot::rpc {

void Doorbell::announce() {
  if (word_ == nullptr) return;
  word_->store(kAsleep, std::memory_order_relaxed);
  std::atomic_thread_fence(std::memory_order_seq_cst);  // partner: ring()
}

void Doorbell::withdraw() {
  if (word_ != nullptr) word_->store(kAwake, std::memory_order_relaxed);
}

void Doorbell::sleep(std::uint64_t nap_ns) {
  if (word_ == nullptr || os::futex_wait(*word_, kAsleep, nap_ns) == os::WaitEnd::kUnsupported) {
    std::this_thread::sleep_for(std::chrono::nanoseconds(nap_ns));
  }
  withdraw();
}

void Doorbell::ring() {
  if (word_ == nullptr) return;
  std::atomic_thread_fence(std::memory_order_seq_cst);  // partner: announce()
  ring_if_asleep();
}

void Doorbell::ring_if_asleep() {
  if (word_ == nullptr) return;
  if (word_->load(std::memory_order_relaxed) != kAsleep) return;
  if (word_->exchange(kAwake, std::memory_order_relaxed) == kAsleep) os::futex_wake(*word_, 1);
}

void HostWaiter::wait(std::uint32_t round) {
  constexpr std::uint32_t kPollsBetweenClockReads = 16;
  if (round == 0) {
    if (announced_) own_.withdraw();
    announced_ = false;
    idle_since_ns_ = 0;
  }
  if (announced_) {
    own_.sleep(options_.nap_ns);
    announced_ = false;
    return;
  }
  os::cpu_relax();
  if (round % kPollsBetweenClockReads != kPollsBetweenClockReads - 1) return;
  const std::uint64_t now = base::SteadyClock::read();
  if (idle_since_ns_ == 0) idle_since_ns_ = now;
  if (now - idle_since_ns_ < options_.spin_ns) return;
  own_.announce();
  announced_ = true;
}

}  // namespace cachalot::rpc
