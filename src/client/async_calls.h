// Asynchronous calls: worker threads, a queue, and a table of calls and completions.
//
// One thread runs a call from start to end. Cancelling sets a flag that the call reads between blocks.
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
  // @return the number of blocks loaded or stored. Reads `cancelled` between blocks
  using Call = std::function<Result<Stored>(const std::atomic<bool>& cancelled)>;

  // The first call starts the threads.
  explicit AsyncCalls(std::uint32_t workers) : workers_(workers) {}
  ~AsyncCalls() { stop(); }
  // Rejects new calls, and waits until all accepted calls have completed.
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
  // removed when the completion is returned
  std::unordered_map<std::uint64_t, std::shared_ptr<Job>> jobs_;
  std::uint64_t next_token_ = 1;
  bool is_stopping_ = false;
  std::vector<std::jthread> threads_;
};

}  // namespace cachalot::client
