// Threads for a file system whose calls may hang: a caller leaves what is stuck, and goes on at its deadline.
//
// A call of a network file system returns when its server answers, which may be never; nothing but the end of the process
// ends it. So a job owns all that it uses, and its result is taken by the caller's thread if that still waits.
//
// Invariants
//   1. Memory of a caller is used in the caller's thread only.
//   2. There are `most` threads at most, also if all of them are stuck.
//   3. A job that no thread has begun when its caller goes on is dropped.
//   4. The destructor waits for jobs for a moment. A thread that is stuck then ends after its call, or with the process.
//
// @threads any
#pragma once

#include <cachalot/result.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <utility>

#include "base/clock.h"
#include "storage/cancel_signal.h"

namespace cachalot::storage {

class Workers {
 public:
  using Job = std::function<void()>;

  explicit Workers(std::size_t most) : state_(std::make_shared<State>()), most_(most) {}
  Workers(const Workers&) = delete;
  Workers& operator=(const Workers&) = delete;
  ~Workers();

  std::size_t most() const { return most_; }
  std::shared_ptr<CancelSignal> cancel_signal() const { return cancel_; }
  // @param caller  a name for drop()
  void add(const void* caller, Job job);
  // Drops the jobs of a caller that have not begun.
  void drop(const void* caller);

  // Runs prepare(i), which makes the job i, for i below `count`, while jobs made before it run; and take(i, result) for each
  // result as it comes. Both in this thread.
  // @errors kTimeout, kCancelled: the rest was not taken
  template <class Result>
  Status gather(std::size_t count,
                const std::function<std::function<Result()>(std::size_t)>& prepare,
                const std::function<void(std::size_t, Result&&)>& take, std::uint64_t deadline_ns);

 private:
  struct State {
    std::mutex mutex;  // all below
    std::condition_variable added, ended;
    std::deque<std::pair<const void*, Job>> jobs;
    std::size_t threads = 0, idle = 0;
    bool stops = false;
  };
  static void work(const std::shared_ptr<State>& state);
  Status check_time(std::uint64_t deadline_ns) const;

  const std::shared_ptr<State> state_;
  const std::size_t most_;
  const std::shared_ptr<CancelSignal> cancel_ = std::make_shared<CancelSignal>();
};

template <class Result>
Status Workers::gather(std::size_t count,
                       const std::function<std::function<Result()>(std::size_t)>& prepare,
                       const std::function<void(std::size_t, Result&&)>& take,
                       std::uint64_t deadline_ns) {
  struct Results {
    std::mutex mutex;
    std::condition_variable came;
    std::deque<std::pair<std::size_t, Result>> come;
  };
  constexpr auto kLookForCancel = std::chrono::milliseconds(20);
  const auto results = std::make_shared<Results>();
  for (std::size_t begun = 0, taken = 0; taken < count;) {
    for (; begun < count && begun - taken < most_; ++begun) {
      add(results.get(), [results, begun, run = prepare(begun)] {
        Result result = run();
        const std::lock_guard lock(results->mutex);
        results->come.emplace_back(begun, std::move(result));
        results->came.notify_one();
      });
    }
    std::unique_lock lock(results->mutex);
    (void)results->came.wait_for(lock, kLookForCancel, [&] { return !results->come.empty(); });
    for (; !results->come.empty(); ++taken) {
      auto [i, result] = std::move(results->come.front());
      results->come.pop_front();
      lock.unlock();
      take(i, std::move(result));
      lock.lock();
    }
    const Status time = taken == count ? Status() : check_time(deadline_ns);
    if (time) continue;
    drop(results.get());
    return time.error();
  }
  return {};
}

}  // namespace cachalot::storage
