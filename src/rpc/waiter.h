// What a process does while it has nothing to do: first spin, then get out of the others' way.
//
// Two cores must be enough for a keeper and several clients, and waking somebody costs as much as
// 25 polls, so a waiter spins for about 30 us, and then sleeps until its doorbell rings or a nap
// is over. A missed ring costs one nap, never a hang.
//
//   for (std::uint32_t round = 0; !poll(); ++round) waiter.wait(round);
#pragma once

#include <atomic>
#include <cstdint>

#include "base/clock.h"

namespace cachalot::rpc {

class Waiter {
 public:
  virtual ~Waiter() = default;
  // Called after the (round + 1)-th poll in a row that found nothing.
  virtual void wait(std::uint32_t round) = 0;
};

// A word that a sleeper on the same machine waits on. It is a hint between processes of one
// machine, not a part of the pool's protocol: across machines there are only naps.
class Doorbell {
 public:
  Doorbell() = default;
  explicit Doorbell(std::atomic<std::uint32_t>* word) : word_(word) {}

  // Says that the owner is about to sleep. What it polls for must be polled once more after this:
  // the full fence here pairs with the one in ring(), so that either that poll sees what was
  // written, or the writer sees the announcement.
  void announce();
  void withdraw();
  // Sleeps until rung, at most `nap_ns`. Call after announce() and one more poll.
  void sleep(std::uint64_t nap_ns);

  // Wakes the owner if it sleeps: a full fence, and a load of a line that is seldom written.
  void ring();
  // The same without the fence, for who asks again and again: it may miss a sleeper once.
  void ring_if_asleep();

 private:
  static constexpr std::uint32_t kAwake = 0;
  static constexpr std::uint32_t kAsleep = 1;
  std::atomic<std::uint32_t>* word_ = nullptr;
};

class HostWaiter final : public Waiter {
 public:
  struct Options {
    std::uint64_t spin_ns = 30'000;
    std::uint64_t nap_ns = 1'000'000;
  };
  // @param own  the doorbell that others ring for this process
  HostWaiter(Doorbell own, Options options) : own_(own), options_(options) {}

  void wait(std::uint32_t round) override;

 private:
  Doorbell own_;
  Options options_;
  std::uint64_t idle_since_ns_ = 0;
  bool announced_ = false;
};

}  // namespace cachalot::rpc
