#include "client/async_calls.h"

#include <algorithm>
#include <chrono>
#include <system_error>

namespace cachalot::client {
namespace {

Error unknown_call(Token token) {
  return Error::make(Code::kNotFound, "token: %llu is of no call, or its completion was handed out",
                     static_cast<unsigned long long>(token));
}

}  // namespace

Status AsyncCalls::start_threads() {
  try {
    while (threads_.size() < std::max(1u, workers_)) {
      threads_.emplace_back([this](const std::stop_token& stop) { work(stop); });
    }
  } catch (const std::system_error& error) {
    if (threads_.empty())
      return Error::from_errno(error.code().value(), "client: a thread for calls that do not wait");
  }
  return {};
}

Result<Token> AsyncCalls::submit(Call call) {
  const std::lock_guard lock(mutex_);
  if (is_stopping_)
    return Error::make(Code::kInvalidArgument, "client: it has detached from its pool");
  if (jobs_.size() >= kMostUnclaimed) {
    return Error::make(Code::kNoSpace,
                       "client: %zu calls are under way or unclaimed: poll their tokens",
                       jobs_.size());
  }
  CACHALOT_TRY(start_threads());
  auto job = std::make_shared<Job>();
  job->call = std::move(call);
  const std::uint64_t token = next_token_++;
  jobs_.emplace(token, job);
  queue_.push_back(std::move(job));
  queued_.notify_one();
  return Token{token};
}

void AsyncCalls::work(const std::stop_token& stop) {
  std::unique_lock lock(mutex_);
  while (queued_.wait(lock, stop, [this] { return !queue_.empty(); })) {
    const std::shared_ptr<Job> job = std::move(queue_.front());
    queue_.pop_front();
    lock.unlock();
    const Result<Stored> done = job->call(job->cancelled);
    job->call = nullptr;  // releases its cache before the completion is visible
    lock.lock();
    if (done) {
      job->completion.blocks = done->blocks;
      job->completion.reason = done->reason;
    } else {
      const Error& error = done.error();
      job->completion.status = error;
      const bool ended_early = error.code == Code::kTimeout || error.code == Code::kCancelled;
      if (ended_early) job->completion.blocks = error.detail;
    }
    job->completion.is_done = true;
    done_.notify_all();
  }
}

Result<Completion> AsyncCalls::hand_out(
    std::unordered_map<std::uint64_t, std::shared_ptr<Job>>::iterator at) {
  Completion completion = std::move(at->second->completion);
  jobs_.erase(at);
  return completion;
}

Result<Completion> AsyncCalls::poll(Token token) {
  const std::lock_guard lock(mutex_);
  const auto at = jobs_.find(static_cast<std::uint64_t>(token));
  if (at == jobs_.end()) return unknown_call(token);
  if (!at->second->completion.is_done) return Completion{};
  return hand_out(at);
}

Result<Completion> AsyncCalls::wait(Token token, std::uint64_t timeout_ns) {
  std::unique_lock lock(mutex_);
  auto at = jobs_.find(static_cast<std::uint64_t>(token));
  if (at == jobs_.end()) return unknown_call(token);
  const std::shared_ptr<Job> job = at->second;
  const auto is_done = [&] { return job->completion.is_done; };
  constexpr std::uint64_t kLongest = 365ull * 24 * 3600 * 1'000'000'000;
  if (!done_.wait_for(lock, std::chrono::nanoseconds(std::min(timeout_ns, kLongest)), is_done)) {
    return Error::make(Code::kTimeout, "token: %llu is not done within the time given",
                       static_cast<unsigned long long>(token));
  }
  at = jobs_.find(static_cast<std::uint64_t>(token));
  if (at == jobs_.end()) return unknown_call(token);  // another thread took the completion
  return hand_out(at);
}

Status AsyncCalls::cancel(Token token) {
  const std::lock_guard lock(mutex_);
  const auto at = jobs_.find(static_cast<std::uint64_t>(token));
  if (at == jobs_.end()) return unknown_call(token);
  // relaxed: only a hint, nothing depends on when it is seen
  at->second->cancelled.store(true, std::memory_order_relaxed);
  return {};
}

void AsyncCalls::stop() {
  {
    const std::lock_guard lock(mutex_);
    is_stopping_ = true;
  }
  // After the request, a thread still runs all queued calls.
  for (std::jthread& thread : threads_) thread.request_stop();
  threads_.clear();
}

}  // namespace cachalot::client
