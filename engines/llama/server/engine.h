// The engine behind the server: slots that each hold one conversation's KV, and the one thread that
// decodes for all of them.
//
//                       +- slot 0: context, KV, prompt cache -+
//   requests -> queue --+- slot 1: ...                        +-- decode thread, a step each in turn
//                       +- slot n: ...                       -+
//
// 1. A slot has a llama_context of its own, with one sequence in it. Kernels add up attention in
//    tiles of cells, so an answer's last bits depend on which cells its tokens are in; here they are
//    always the first ones, in order, whatever other slots do. The weights are shared.
// 2. A step is one chunk of a prompt, or one token: a slot waits at most one step for each other
//    slot.
// 3. What a slot reuses of its last request are whole blocks of that prompt, which were computed in
//    the same shape as a new computation would. Tokens that were generated one by one are computed
//    again when they come back as part of a prompt.
// So an answer is the same to the bit whether its prompt was computed, was the slot's own, or came
// from the pool.
#pragma once

#include <cachalot/result.h>

#include <condition_variable>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

#include "job.h"
#include "model.h"
#include "slot.h"

namespace cachalot::llama {

struct EngineOptions {
  SlotOptions slot;
  std::size_t slots = 2;
  std::size_t queue_limit = 64;
  std::optional<HandoverOptions>
      transfer;  // needs slot.cache; staging_bytes 0: for the contexts of all slots
};

class Engine {
 public:
  // @errors as Slot::make, Handover::open
  static Result<std::unique_ptr<Engine>> start(const Model& model, const EngineOptions& options);
  // Ends requests that are not finished with kCancelled.
  ~Engine();
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  struct Load {
    std::size_t slots = 0, busy_slots = 0, queued = 0;
  };
  Load load() const;
  // Of all slots, as of their last steps; none: without a pool.
  struct PoolHealth {
    std::uint64_t damaged_blocks = 0, replaced_chains = 0, failures = 0;
  };
  std::optional<PoolHealth> pool_health() const;
  // None: without a host cache. @threads any
  std::optional<HostCache::Counts> host_cache() const;
  // None: it takes part in no transfer. @threads any
  std::optional<Handover::Counts> transfer() const;
  std::vector<std::string> transfer_addresses() const;
  // As those of PromptCache; false without a pool. @threads any
  bool wait_for_storage(std::uint64_t timeout_ns);
  bool flush_to_storage(std::uint64_t timeout_ns);
  // At work and waiting together.
  std::size_t most_requests() const { return slots_.size() + queue_limit_; }
  std::uint32_t context_tokens() const { return slots_.front().context_tokens(); }

  // Also asks storage for the prompt: its blocks come while it waits for a slot.
  // @errors kBusy: the queue is full, or the engine is stopping
  // @threads any
  Status submit(std::shared_ptr<Job> job);
  // No more requests; those that are there go on. @threads any
  void close();
  bool is_closed() const;
  static Error closed_error();  // what submit() says then
  // The same, and those not finished end with kCancelled. @threads any
  void stop();

 private:
  Engine(std::vector<Slot> slots, std::shared_ptr<Handover> handover, const EngineOptions& options);
  Status check_room() const;
  void run();
  void admit();
  static bool step(Slot& slot);
  bool step_all();
  std::optional<PoolHealth> count_pool_health() const;
  void cancel_all();

  const std::shared_ptr<Handover> handover_;  // null: none. Outlives the slots
  std::vector<Slot> slots_;                   // the decode thread's, but for ask_storage()
  const std::size_t queue_limit_;
  const std::shared_ptr<const HostCache> host_cache_;  // null: none
  std::uint64_t requests_ = 0;                         // the decode thread's

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::shared_ptr<Job>> queue_;
  std::size_t busy_slots_ = 0;
  std::optional<PoolHealth> pool_health_;
  bool is_closed_ = false, is_stopping_ = false;
  std::thread thread_;
};

}  // namespace cachalot::llama
