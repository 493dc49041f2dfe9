// One call of the plug-in's table: a worker thread executes it, the caller waits for it until a deadline.
//
// Invariants
//   1. After wait() has returned, no thread accesses the caller's memory: workers touch it inside while_called() only.
//   2. The caller never waits for Python, only for the worker's answer, and at most one copy of a value longer.
//
// @threads the caller: wait(); one worker: the rest
#pragma once

#include <cachalot/storage_plugin.h>

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <exception>
#include <functional>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

namespace cachalot::python_storage {

struct Outcome {
  std::int32_t result = CACHALOT_STORAGE_OK;
  std::string why = {};
};

class Call {
 public:
  // @param work  owns all that it uses, but for the caller's memory
  explicit Call(std::function<Outcome(Call&)> work) : work_(std::move(work)) {}

  // Runs `touch` unless the caller has returned. @return whether it ran
  template <class Touch>
  bool while_called(const Touch& touch) {
    const std::lock_guard lock(mutex_);
    if (is_abandoned_) return false;
    touch();
    return true;
  }

  void execute() {
    Outcome outcome = worked();
    work_ = nullptr;
    const std::lock_guard lock(mutex_);
    outcome_ = std::move(outcome);
    is_done_ = true;
    done_.notify_all();
  }

  // @param deadline_ns  of CLOCK_MONOTONIC
  // @return CACHALOT_STORAGE_TIMEOUT: not done before the deadline
  Outcome wait(std::uint64_t deadline_ns) {
    // Later than 100 years: forever, without an overflow in the clock.
    constexpr std::uint64_t kLatestNs = 3'155'760'000'000'000'000;
    const std::chrono::steady_clock::time_point until(
        std::chrono::nanoseconds(deadline_ns < kLatestNs ? deadline_ns : kLatestNs));
    std::unique_lock lock(mutex_);
    if (done_.wait_until(lock, until, [this] { return is_done_; })) return std::move(outcome_);
    is_abandoned_ = true;
    return {CACHALOT_STORAGE_TIMEOUT, "the Python class has not answered before the deadline"};
  }

  bool is_abandoned() {
    const std::lock_guard lock(mutex_);
    return is_abandoned_;
  }

 private:
  // An exception would end the process.
  Outcome worked() {
    try {
      return work_(*this);
    } catch (const std::exception& error) {
      return {CACHALOT_STORAGE_IO, error.what()};
    }
  }

  std::function<Outcome(Call&)> work_;
  std::mutex mutex_;
  std::condition_variable done_;
  bool is_done_ = false;
  bool is_abandoned_ = false;
  Outcome outcome_;
};

}  // namespace cachalot::python_storage
