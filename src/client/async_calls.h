// Calls that go on by themselves: a few threads, a queue, and a table of what became of each.
//
// A call that was taken from the queue is carried out by one thread from its beginning to its end.
// Cancelling sets a flag that the call looks at between its blocks.
//
// @threads any
#pragma once

#include <cachalot/client.h>

#include <atomic>
#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <unordered_map>
#include <vector>

namespace cachalot::client {

class AsyncCalls {
 public:
  // @return the blocks done, a load's too; looks at `cancelled` now and then
  using Call = std::function<Result<Stored>(const std::atomic<bool>& cancelled)>;

  // Threads are started with the first call.
  explicit AsyncCalls(std::uint32_t workers) : workers_(workers) {}
  ~AsyncCalls() { stop(); }
  // Takes no more calls; waits until those that were taken are carried out.
  void stop();

  // @errors kNoSpace: no thread can be started, or the queue is full
  Result<Token> submit(Call call);
  Result<Completion> poll(Token token);
  Result<Completion> wait(Token token, std::uint64_t timeout_ns);
  Status cancel(Token token);

 private:
  struct Job {
    Call call;
    std::atomic<bool> cancelled = false;
    Completion completion;
  };
  static constexpr std::size_t kMostUnclaimed = 1u << 16;

  Status start_threads();
  void work(const std::stop_token& stop);
  Result<Completion> hand_out(std::unordered_map<std::uint64_t, std::shared_ptr<Job>>::iterator at);

  const std::uint32_t workers_;
  std::mutex mutex_;
  std::condition_variable_any queued_, done_;
  std::deque<std::shared_ptr<Job>> queue_;
  // until their completion is handed out
  std::unordered_map<std::uint64_t, std::shared_ptr<Job>> jobs_;
  std::uint64_t next_token_ = 1;
  bool is_stopping_ = false;
  std::vector<std::jthread> threads_;
};

}  // namespace cachalot::client
