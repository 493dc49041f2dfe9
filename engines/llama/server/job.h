// One request on its way through the engine: the HTTP thread that brought it waits for its text, the
// decode thread writes it.
#pragma once

#include <cachalot/result.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "../stored_blocks.h"
#include "request.h"

namespace cachalot::llama {

// Where the tokens of the prompt came from, and how long it took.
struct Usage {
  std::size_t prompt_tokens = 0;
  std::size_t completion_tokens = 0;
  std::size_t own_tokens = 0;       // of the prompt: were in the slot's own cache
  std::size_t host_tokens = 0;      // of the prompt: from the host cache
  std::size_t pool_tokens = 0;      // of the prompt: read from the pool
  std::size_t transfer_tokens = 0;  // of the prompt: taken over from another process
  std::uint64_t queue_ns = 0;       // until a slot was free
  std::uint64_t load_ns = 0, compute_ns = 0, store_ns = 0;  // of the prompt
  std::uint64_t wait_ns = 0;           // for blocks that another process computed
  std::uint64_t transfer_wait_ns = 0;  // for blocks of another process without a common pool
  std::uint64_t storage_wait_ns = 0;   // for blocks from the storage behind the pool
  std::size_t storage_tokens = 0;      // of pool_tokens: storage had brought them for this request
  std::size_t unused_storage_tokens = 0;  // asked of storage, and computed before they came
  std::uint64_t prompt_cpu_ns = 0;        // of the decode thread, for the prompt
  std::uint64_t first_token_ns = 0;       // from the arrival of the request
  std::uint64_t total_ns = 0;
};

enum class Finish { kStop, kLength };

struct Event {
  std::string text = {};              // what was added; may be empty
  std::optional<Finish> finish = {};  // with the last one
  std::optional<Error> error = {};    // instead
};

class Job {
 public:
  using Clock = std::chrono::steady_clock;

  Job(std::vector<Token> tokens_in, Request request_in, std::uint32_t max_tokens_in)
      : tokens(std::move(tokens_in)), request(std::move(request_in)), max_tokens(max_tokens_in) {}

  const std::vector<Token> tokens;
  const Request request;
  const std::uint32_t max_tokens;
  const Clock::time_point arrived = Clock::now();
  StoredBlocks stored;  // written before the job is queued
  // The decode thread's, until the last event was put; then the other's.
  Usage usage;
  std::optional<PromptReference> reference;  // of the prompt's KV, if it was asked for

  void put(Event event);
  // All text that came meanwhile as one event, or nothing after the timeout.
  std::optional<Event> take(std::chrono::milliseconds timeout);

  // The rest is not needed.
  void cancel() { is_cancelled_.store(true, std::memory_order_relaxed); }
  bool is_cancelled() const { return is_cancelled_.load(std::memory_order_relaxed); }

 private:
  std::atomic<bool> is_cancelled_{false};
  std::mutex mutex_;
  std::condition_variable changed_;
  std::optional<Event> pending_;
};

}  // namespace cachalot::llama
