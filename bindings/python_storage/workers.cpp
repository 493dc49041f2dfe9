#include "workers.h"

#include <algorithm>
#include <chrono>
#include <thread>

#include "interpreter.h"

namespace cachalot::python_storage {

std::uint64_t now_ns() {
  const auto now = std::chrono::steady_clock::now().time_since_epoch();
  return static_cast<std::uint64_t>(
      std::chrono::duration_cast<std::chrono::nanoseconds>(now).count());
}

std::shared_ptr<Workers> Workers::start(std::size_t threads) {
  auto workers = std::make_shared<Workers>();
  workers->running_ = threads;
  // Detached, each with a share of this object: nothing can end a thread that hangs in Python.
  for (std::size_t i = 0; i < threads; ++i) std::thread([workers] { workers->work(); }).detach();
  return workers;
}

Outcome Workers::run(const std::shared_ptr<Call>& call, std::uint64_t deadline_ns) {
  {
    const std::lock_guard lock(mutex_);
    queue_.push_back(call);
    changed_.notify_one();
  }
  Outcome outcome = call->wait(deadline_ns);
  if (outcome.result == CACHALOT_STORAGE_TIMEOUT) {
    const std::lock_guard lock(mutex_);
    const auto at = std::find(queue_.begin(), queue_.end(), call);
    if (at != queue_.end()) queue_.erase(at);
  }
  return outcome;
}

void Workers::work() {
  {
    ThreadState python;
    std::unique_lock lock(mutex_);
    for (;;) {
      changed_.wait(lock, [this] { return is_stopped_ || !queue_.empty(); });
      if (queue_.empty()) break;
      const std::shared_ptr<Call> call = std::move(queue_.front());
      queue_.pop_front();
      lock.unlock();
      {
        const WithPython gil(python);
        if (!call->is_abandoned()) call->execute();
      }
      lock.lock();
    }
    lock.unlock();
  }
  const std::lock_guard lock(mutex_);
  --running_;
  changed_.notify_all();
}

bool Workers::stop(std::uint64_t deadline_ns) {
  std::unique_lock lock(mutex_);
  is_stopped_ = true;
  queue_.clear();
  changed_.notify_all();
  const std::chrono::steady_clock::time_point until{std::chrono::nanoseconds(deadline_ns)};
  return changed_.wait_until(lock, until, [this] { return running_ == 0; });
}

}  // namespace cachalot::python_storage
