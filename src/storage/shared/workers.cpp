#include "storage/shared/workers.h"

#include <iterator>
#include <system_error>
#include <thread>

namespace cachalot::storage {

Workers::~Workers() {
  constexpr auto kPatience = std::chrono::seconds(1);
  std::unique_lock lock(state_->mutex);
  state_->stops = true;
  state_->jobs.clear();
  state_->added.notify_all();
  (void)state_->ended.wait_for(lock, kPatience, [this] { return state_->threads == 0; });
}

void Workers::add(const void* caller, Job job) {
  const std::lock_guard lock(state_->mutex);
  state_->jobs.emplace_back(caller, std::move(job));
  if (state_->idle >= state_->jobs.size() || state_->threads == most_) {
    state_->added.notify_one();
    return;
  }
  // Without a further thread the job waits for one of those that are there, or is dropped at its caller's deadline.
  try {
    std::thread([state = state_] { work(state); }).detach();
    ++state_->threads;
  } catch (const std::system_error&) {
  }
}

void Workers::drop(const void* caller) {
  std::deque<std::pair<const void*, Job>> dropped;  // outlives the lock: jobs may have much memory
  const std::lock_guard lock(state_->mutex);
  auto& jobs = state_->jobs;
  const auto kept = std::stable_partition(jobs.begin(), jobs.end(),
                                          [&](const auto& job) { return job.first != caller; });
  std::move(kept, jobs.end(), std::back_inserter(dropped));
  jobs.erase(kept, jobs.end());
}

void Workers::work(const std::shared_ptr<State>& state) {
  std::unique_lock lock(state->mutex);
  while (!state->stops) {
    if (state->jobs.empty()) {
      ++state->idle;
      state->added.wait(lock);
      --state->idle;
      continue;
    }
    Job job = std::move(state->jobs.front().second);
    state->jobs.pop_front();
    lock.unlock();
    job();
    job = {};
    lock.lock();
  }
  --state->threads;
  state->ended.notify_all();
}

Status Workers::check_time(std::uint64_t deadline_ns) const {
  if (cancel_->is_raised()) return Error::make(Code::kCancelled, "storage: the call was cancelled");
  if (base::SteadyClock::read() < deadline_ns) return {};
  return Error::make(Code::kTimeout, "storage: the file system has not answered in time");
}

}  // namespace cachalot::storage
