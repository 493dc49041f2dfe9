// What a process does while it has nothing to do: first spin, then get out of the others' way.
//
// Two cores must be enough for a keeper and several clients, and a wake costs as much as
// 25 polls, so a waiter spins for about 30 us, and then sleeps until its doorbell rings or a nap
// is over. A missed ring costs one nap, never a hang.
//
// A process that spins keeps a process on the same core from doing what it waits for. So each process
// says on which core it runs, and a waiter that shares its core with one of its peers sleeps at once.
//
//   for (std::uint32_t round = 0; !poll(); ++round) waiter.wait(round);
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <utility>

#include "base/clock.h"
#include "os/topology.h"

namespace cachalot::rpc {

class Waiter {
 public:
  virtual ~Waiter() = default;
  // Called after the (round + 1)-th poll in a row that found nothing.
  virtual void wait(std::uint32_t round) = 0;
  // Says on which core the caller runs. Call before a peer is given work, which may then need that core.
  virtual void tell_core() {}
};

// What lies at the start of a doorbell's line in the pool.
struct DoorbellWords {
  std::atomic<std::uint32_t> state{0};        // what the owner sleeps on
  std::atomic<std::uint32_t> core_plus_1{0};  // where the owner last ran; 0: not known
};

// Words through which a sleeper on the same machine is woken, and says where it runs. They are hints
// between processes of one machine, not a part of the pool's protocol: across machines there are only
// naps.
class Doorbell {
 public:
  Doorbell() = default;
  explicit Doorbell(DoorbellWords* words) : words_(words) {}
  // The one in this line of the pool.
  static Doorbell at(std::byte* line) { return Doorbell(reinterpret_cast<DoorbellWords*>(line)); }

  // Says that the owner is about to sleep. What it polls for must be polled once more after this:
  // the full fence here pairs with the one in ring(), so that either that poll sees what was
  // written, or the writer sees the announcement.
  void announce();
  void withdraw();
  // Sleeps until rung, at most `nap_ns`. Call after announce() and one more poll.
  // @return false if a ring cannot end the sleep: there is no doorbell, or none can wait on its memory
  bool sleep(std::uint64_t nap_ns);

  // Wakes the owner if it sleeps: a full fence, and a load of a line that is seldom written.
  void ring() const;
  // The same without the fence, for repeated calls: it may miss a sleeper once.
  void ring_if_asleep() const;

  // The owner runs on this core. Writes the line only where that is new.
  void tell_core(int core);
  // True if the owner said so last; it may have moved since.
  bool owner_ran_on(int core) const;

 private:
  static constexpr std::uint32_t kAwake = 0;
  static constexpr std::uint32_t kAsleep = 1;
  DoorbellWords* words_ = nullptr;
};

class HostWaiter final : public Waiter {
 public:
  struct Options {
    std::uint64_t spin_ns = 30'000;
    std::uint64_t nap_ns = 1'000'000;
    // True if a process that this one waits for, or has just given an answer, last ran on `core`.
    std::function<bool(int core)> peer_ran_on = {};
    std::function<int()> own_core = os::current_core;
  };
  // @param own  the doorbell that others ring for this process
  HostWaiter(Doorbell own, Options options) : own_(own), options_(std::move(options)) {}

  void wait(std::uint32_t round) override;
  void tell_core() override { own_.tell_core(options_.own_core()); }

 private:
  bool keeps_a_peer_from_running();
  void announce();

  Doorbell own_;
  Options options_;
  std::uint64_t idle_since_ns_ = 0;
  bool announced_ = false;
  bool rings_end_sleep_ = true;  // until a sleep has shown the contrary
};

}  // namespace cachalot::rpc
