#include "rpc/waiter.h"

#include <chrono>
#include <thread>

#include "os/futex.h"
#include "os/topology.h"

namespace cachalot::rpc {
namespace {

// ThreadSanitizer knows no fences. It need not know these: they order what lies in the pool, which
// the domains make atomic for it.
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wtsan"
void full_fence() {
  std::atomic_thread_fence(std::memory_order_seq_cst);
}
#pragma GCC diagnostic pop

}  // namespace

void Doorbell::announce() {
  if (word_ == nullptr) return;
  word_->store(kAsleep, std::memory_order_relaxed);
  full_fence();  // partner: ring()
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
  full_fence();  // partner: announce()
  ring_if_asleep();
}

void Doorbell::ring_if_asleep() {
  if (word_ == nullptr) return;
  if (word_->load(std::memory_order_relaxed) != kAsleep) return;
  if (word_->exchange(kAwake, std::memory_order_relaxed) == kAsleep) os::futex_wake(*word_, 1);
}

void HostWaiter::wait(std::uint32_t round) {
  constexpr std::uint32_t kPollsBetweenClockReads = 16;
  constexpr std::uint32_t kPollsWithoutPause = 64;
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
  // A pause takes as long as several polls: the first answers come before it is worth one.
  if (round >= kPollsWithoutPause) os::cpu_relax();
  if (round % kPollsBetweenClockReads != kPollsBetweenClockReads - 1) return;
  const std::uint64_t now = base::SteadyClock::read();
  if (idle_since_ns_ == 0) idle_since_ns_ = now;
  if (now - idle_since_ns_ < options_.spin_ns) return;
  own_.announce();
  announced_ = true;
}

}  // namespace cachalot::rpc
