// Runs functions as fibers in one thread, interleaved by one seeded generator: the same seed gives
// the same run, and a hang is a number of steps, not a time-out.
//
// A step is one point at which something else may happen: each simulated access to memory is at
// least one. Steps are the only clock, 100 ns each.
//
// Invariants
//  1. Nothing but the seed and the functions themselves decides what runs next.
//  2. run() returns when all fibers are done or the budget is spent; a fiber that waits must pass
//     steps (a Domain's functions, now_ns() and yield() do), or the run never ends.
//  3. stopping() is true once every worker is done: daemons return then.
//
// @threads  one
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/rng.h"
#include "testing/memory/adversary.h"
#include "testing/memory/fiber.h"

namespace cachalot::memory {

enum class Ending { kAllDone, kBudgetSpent };
struct Outcome {
  Ending ending;
  std::uint64_t steps;  // of this run
};

class Scheduler final : public base::Clock {
 public:
  static constexpr std::size_t kOutside = 0;  // current() where no fiber runs
  static constexpr std::uint64_t kStepNs = 100;
  enum class Role { kWorker, kDaemon };

  explicit Scheduler(std::uint64_t seed, const Pace& pace = {});
  ~Scheduler() override;

  // Adds a fiber and gives it a number, from 1. May be called by a fiber. `body` must not throw.
  std::size_t add(std::string name, std::function<void()> body, Role role = Role::kWorker);

  // Runs until all fibers are done or `step_budget` steps have passed; may be called again.
  Outcome run(std::uint64_t step_budget);

  // One step; at the end of the fiber's turn others run first. Nothing else runs outside fibers.
  void step() {
    if (++steps_ >= decision_ && current_ != kOutside) [[unlikely]]
      decide();
  }
  // Ends the fiber's turn: any fiber that is awake may be next, this one too. Counts as a step.
  void yield() {
    ++steps_;
    if (current_ != kOutside) decide();
  }
  // A step, so that waiting by the clock ends.
  std::uint64_t now_ns() override {
    step();
    return steps_ * kStepNs;
  }

  // This fiber never runs again, and its stack is never unwound: a host that died. Not for the
  // running fiber.
  void abandon(std::size_t fiber);

  bool stopping() const { return workers_ == 0; }
  std::size_t current() const { return current_; }
  std::uint64_t steps() const { return steps_; }
  base::Rng& rng() { return rng_; }
  // A hash of all decisions so far.
  std::uint64_t fingerprint() const { return fingerprint_; }
  // The names of fibers that are neither done nor abandoned, for messages.
  std::string unfinished() const;

 private:
  struct Task {
    Scheduler* scheduler = nullptr;
    std::string name;
    std::function<void()> body;
    Role role = Role::kWorker;
    bool done = false;
    std::uint64_t awake_at = 0;  // step
    std::unique_ptr<Fiber> fiber;
  };

  static void run_task(void* task);
  void decide();
  std::size_t pick();
  void begin_turn(std::size_t fiber);
  void finish(Task& task);
  Fiber& fiber(std::size_t number) {
    return number == kOutside ? outside_ : *tasks_[number - 1]->fiber;
  }

  base::Rng rng_;
  Pace pace_;
  Fiber outside_;
  std::vector<std::unique_ptr<Task>> tasks_;  // fiber n is tasks_[n - 1]
  std::size_t current_ = kOutside;
  std::size_t workers_ = 0;     // not done
  std::size_t unfinished_ = 0;  // not done, daemons included
  std::uint64_t steps_ = 0;
  std::uint64_t decision_ = 0;  // the step at which the turn ends
  std::uint64_t budget_end_ = 0;
  std::uint64_t fingerprint_ = 0;
};

}  // namespace cachalot::memory
