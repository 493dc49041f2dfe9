#include "rpc/waiter.h"

#include <chrono>
#include <thread>

#include "os/futex.h"

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
  if (words_ == nullptr) return;
  words_->state.store(kAsleep, std::memory_order_relaxed);
  full_fence();  // partner: ring()
}

void Doorbell::withdraw() {
  if (words_ != nullptr) words_->state.store(kAwake, std::memory_order_relaxed);
}

bool Doorbell::sleep(std::uint64_t nap_ns) {
  const bool is_rung = words_ != nullptr &&
                       os::futex_wait(words_->state, kAsleep, nap_ns) != os::WaitEnd::kUnsupported;
  if (!is_rung) std::this_thread::sleep_for(std::chrono::nanoseconds(nap_ns));
  withdraw();
  return is_rung;
}

void Doorbell::ring() const {
  if (words_ == nullptr) return;
  full_fence();  // partner: announce()
  ring_if_asleep();
}

void Doorbell::ring_if_asleep() const {
  if (words_ == nullptr) return;
  std::atomic<std::uint32_t>& state = words_->state;
  if (state.load(std::memory_order_relaxed) != kAsleep) return;
  if (state.exchange(kAwake, std::memory_order_relaxed) == kAsleep) os::futex_wake(state, 1);
}

void Doorbell::tell_core(int core) {
  if (words_ == nullptr) return;
  const auto told = static_cast<std::uint32_t>(core + 1);
  std::atomic<std::uint32_t>& place = words_->core_plus_1;
  if (place.load(std::memory_order_relaxed) != told) place.store(told, std::memory_order_relaxed);
}

bool Doorbell::owner_ran_on(int core) const {
  return words_ != nullptr && core >= 0 &&
         words_->core_plus_1.load(std::memory_order_relaxed) ==
             static_cast<std::uint32_t>(core + 1);
}

bool HostWaiter::keeps_a_peer_from_running() {
  const int core = options_.own_core();
  own_.tell_core(core);
  return rings_end_sleep_ && options_.peer_ran_on && options_.peer_ran_on(core);
}

void HostWaiter::announce() {
  own_.announce();
  announced_ = true;
}

void HostWaiter::wait(std::uint32_t round) {
  constexpr std::uint32_t kPollsBetweenClockReads = 16;
  constexpr std::uint32_t kPollsWithoutPause = 64;
  if (round == 0) {
    if (announced_) own_.withdraw();
    announced_ = false;
    idle_since_ns_ = 0;
    if (keeps_a_peer_from_running()) return announce();
  }
  if (announced_) {
    rings_end_sleep_ = own_.sleep(options_.nap_ns);
    announced_ = false;
    return;
  }
  // A pause takes as long as several polls: the first answers come before it is worth one.
  if (round >= kPollsWithoutPause) os::cpu_relax();
  if (round % kPollsBetweenClockReads != kPollsBetweenClockReads - 1) return;
  const std::uint64_t now = base::SteadyClock::read();
  if (idle_since_ns_ == 0) idle_since_ns_ = now;
  if (now - idle_since_ns_ >= options_.spin_ns || keeps_a_peer_from_running()) announce();
}

}  // namespace cachalot::rpc
