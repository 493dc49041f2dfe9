#include "testing/memory/scheduler.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "base/check.h"

namespace cachalot::memory {

Scheduler::Scheduler(std::uint64_t seed, const Pace& pace) : rng_(seed), pace_(pace) {}
Scheduler::~Scheduler() {
  CACHALOT_CHECK(current_ == kOutside);
}

std::size_t Scheduler::add(std::string name, std::function<void()> body, Role role) {
  auto task = std::make_unique<Task>();
  task->scheduler = this;
  task->name = std::move(name);
  task->body = std::move(body);
  task->role = role;
  task->fiber = std::make_unique<Fiber>(&run_task, task.get());
  tasks_.push_back(std::move(task));
  ++unfinished_;
  if (role == Role::kWorker) ++workers_;
  return tasks_.size();
}

Outcome Scheduler::run(std::uint64_t step_budget) {
  CACHALOT_CHECK(current_ == kOutside);
  const std::uint64_t begin = steps_;
  budget_end_ = steps_ + step_budget;
  if (unfinished_ > 0 && step_budget > 0) {
    begin_turn(pick());
    Fiber::switch_to(outside_, fiber(current_));
  }
  return {unfinished_ == 0 ? Ending::kAllDone : Ending::kBudgetSpent, steps_ - begin};
}

void Scheduler::decide() {
  const std::size_t from = current_;
  if (steps_ >= budget_end_) {
    current_ = kOutside;
    Fiber::switch_to(fiber(from), outside_);
    return;
  }
  if (pace_.stall_steps > 0 && rng_.chance(pace_.stall_chance)) {
    tasks_[from - 1]->awake_at = steps_ + rng_.below(pace_.stall_steps);
  }
  begin_turn(pick());
  if (current_ != from) Fiber::switch_to(fiber(from), fiber(current_));
}

// A random fiber that is awake; where all stand still, the one that would wake first.
std::size_t Scheduler::pick() {
  std::size_t awake = 0, first = 0;
  std::uint64_t first_at = std::numeric_limits<std::uint64_t>::max();
  for (std::size_t i = 0; i < tasks_.size(); ++i) {
    if (tasks_[i]->done) continue;
    if (tasks_[i]->awake_at <= steps_) ++awake;
    if (tasks_[i]->awake_at < first_at) {
      first_at = tasks_[i]->awake_at;
      first = i;
    }
  }
  if (awake == 0) return first + 1;
  std::size_t chosen = rng_.below(awake);
  std::size_t i = 0;
  while (tasks_[i]->done || tasks_[i]->awake_at > steps_ || chosen-- > 0) ++i;
  return i + 1;
}

void Scheduler::begin_turn(std::size_t fiber) {
  current_ = fiber;
  const std::uint64_t longest = std::uint64_t{1} << rng_.below(pace_.run_exponent + 1);
  decision_ = std::min(budget_end_, steps_ + 1 + rng_.below(longest));
  fingerprint_ = base::mix64(fingerprint_ ^ (steps_ << 8) ^ fiber);
}

void Scheduler::run_task(void* task) {
  auto& self = *static_cast<Task*>(task);
  [&]() noexcept { self.body(); }();
  self.scheduler->finish(self);
}

void Scheduler::finish(Task& task) {
  task.done = true;
  --unfinished_;
  if (task.role == Role::kWorker) --workers_;
  if (unfinished_ == 0 || steps_ >= budget_end_) {
    current_ = kOutside;
  } else {
    begin_turn(pick());
  }
  Fiber::switch_to(*task.fiber, fiber(current_), /*for_good=*/true);
}

void Scheduler::abandon(std::size_t fiber) {
  CACHALOT_CHECK(fiber != kOutside && fiber <= tasks_.size() && fiber != current_);
  Task& task = *tasks_[fiber - 1];
  if (task.done) return;
  task.done = true;
  --unfinished_;
  if (task.role == Role::kWorker) --workers_;
}

std::string Scheduler::unfinished() const {
  std::string names;
  for (const auto& task : tasks_) {
    if (task->done) continue;
    if (!names.empty()) names += ", ";
    names += task->name;
  }
  return names;
}

}  // namespace cachalot::memory
