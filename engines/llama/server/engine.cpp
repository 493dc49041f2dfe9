#include "engine.h"

#include <algorithm>
#include <chrono>
#include <exception>

namespace cachalot::llama {

namespace {

// One for all slots.
Result<std::shared_ptr<Handover>> open_handover(std::vector<Slot>& slots,
                                                const EngineOptions& options) {
  HandoverOptions transfer = *options.transfer;
  const PromptCache& cache = *slots.front().cache();
  if (transfer.staging_bytes == 0) {
    const std::uint64_t blocks =
        options.slots * (slots.front().context_tokens() / cache.block_tokens() + 1);
    transfer.staging_bytes = blocks * (cache.block_bytes() + cache.block_tokens());
  }
  CACHALOT_TRY_ASSIGN(std::shared_ptr<Handover> handover, cache.open_handover(transfer));
  for (Slot& slot : slots) slot.cache()->set_handover(handover);
  return handover;
}

}  // namespace

Result<std::unique_ptr<Engine>> Engine::start(const Model& model, const EngineOptions& options) {
  std::vector<Slot> slots;
  for (std::size_t i = 0; i < options.slots; ++i) {
    CACHALOT_TRY_ASSIGN(Slot slot, Slot::make(model, options.slot));
    slots.push_back(std::move(slot));
  }
  std::shared_ptr<Handover> handover;
  if (options.transfer) {
    CACHALOT_TRY_ASSIGN(handover, open_handover(slots, options));
  }
  return std::unique_ptr<Engine>(new Engine(std::move(slots), std::move(handover), options));
}

Engine::Engine(std::vector<Slot> slots, std::shared_ptr<Handover> handover,
               const EngineOptions& options)
    : handover_(std::move(handover)),
      slots_(std::move(slots)),
      queue_limit_(options.queue_limit),
      host_cache_(options.slot.cache ? options.slot.cache->host_cache : nullptr),
      pool_health_(count_pool_health()) {
  thread_ = std::thread([this] { run(); });
}

Engine::~Engine() {
  stop();
  thread_.join();
}

Engine::Load Engine::load() const {
  const std::lock_guard lock(mutex_);
  return {slots_.size(), busy_slots_, queue_.size()};
}

bool Engine::wait_for_storage(std::uint64_t timeout_ns) {
  PromptCache* const cache = slots_.front().cache();
  return cache != nullptr && cache->wait_for_storage(timeout_ns);
}

bool Engine::flush_to_storage(std::uint64_t timeout_ns) {
  PromptCache* const cache = slots_.front().cache();
  return cache != nullptr && cache->flush_to_storage(timeout_ns);
}

std::optional<HostCache::Counts> Engine::host_cache() const {
  if (!host_cache_) return {};
  return host_cache_->counts();
}

std::optional<Handover::Counts> Engine::transfer() const {
  if (!handover_) return {};
  return handover_->counts();
}

std::vector<std::string> Engine::transfer_addresses() const {
  return handover_ ? handover_->addresses() : std::vector<std::string>();
}

std::optional<Engine::PoolHealth> Engine::pool_health() const {
  const std::lock_guard lock(mutex_);
  return pool_health_;
}

std::optional<Engine::PoolHealth> Engine::count_pool_health() const {
  std::optional<PoolHealth> health;
  for (const Slot& slot : slots_) {
    const PromptCacheStatistics* const of_slot = slot.pool_statistics();
    if (of_slot == nullptr) continue;
    if (!health) health.emplace();
    health->damaged_blocks += of_slot->damaged_blocks;
    health->replaced_chains += of_slot->replaced_chains;
    health->failures += of_slot->pool_failures;
  }
  return health;
}

Status Engine::check_room() const {
  if (is_closed_) return closed_error();
  if (queue_.size() < queue_limit_) return {};
  return Error::make(Code::kBusy, "%zu requests are waiting already, try again later",
                     queue_.size());
}

Status Engine::submit(std::shared_ptr<Job> job) {
  if (handover_ && job->request.kv_transfer.has_unknown_reference) {
    handover_->log("a reference is not used, the prompt is computed",
                   Error::make(Code::kBadInput, "it has another form"));
  }
  {
    const std::lock_guard lock(mutex_);
    CACHALOT_TRY(check_room());
  }
  job->stored =
      slots_.front().ask_storage(job->tokens);  // a request to the keeper: without the lock
  {
    const std::lock_guard lock(mutex_);
    CACHALOT_TRY(check_room());
    queue_.push_back(std::move(job));
  }
  changed_.notify_one();
  return {};
}

void Engine::close() {
  const std::lock_guard lock(mutex_);
  is_closed_ = true;
}

bool Engine::is_closed() const {
  const std::lock_guard lock(mutex_);
  return is_closed_;
}

Error Engine::closed_error() {
  return Error::make(Code::kBusy, "the server is stopping");
}

void Engine::stop() {
  {
    const std::lock_guard lock(mutex_);
    is_closed_ = is_stopping_ = true;
  }
  changed_.notify_one();
}

// Gives waiting requests to free slots, in the order in which they came.
void Engine::admit() {
  for (;;) {
    std::vector<SlotState> states;
    for (const Slot& slot : slots_) states.push_back(slot.state());
    std::shared_ptr<Job> job;
    std::size_t chosen = 0;
    {
      const std::lock_guard lock(mutex_);
      busy_slots_ = static_cast<std::size_t>(
          std::count_if(states.begin(), states.end(), [](auto& state) { return state.is_busy; }));
      if (queue_.empty() || busy_slots_ == slots_.size()) return;
      job = queue_.front();
      chosen = *choose_slot(states, job->tokens, slots_.front().block_tokens());
      queue_.pop_front();
      ++busy_slots_;  // for load(): a request is never nowhere
    }
    if (!job->is_cancelled()) slots_[chosen].begin(std::move(job), ++requests_);
  }
}

// A step, or the end of the request that it goes wrong for. @return as Slot::step
bool Engine::step(Slot& slot) {
  try {
    return slot.step();
  } catch (const std::exception& exception) {  // libllama, or memory
    slot.fail(Error::make(Code::kInternal, "unexpected: %.150s", exception.what()));
    return true;
  }
}

// @return false: every busy slot waits for another process
bool Engine::step_all() {
  bool has_worked = false;
  for (Slot& slot : slots_) {
    if (slot.is_busy() && step(slot)) has_worked = true;
  }
  return has_worked;
}

void Engine::cancel_all() {
  const Error stopping = Error::make(Code::kCancelled, "the server is stopping");
  for (Slot& slot : slots_) slot.fail(stopping);
  const std::lock_guard lock(mutex_);
  for (const std::shared_ptr<Job>& job : queue_) job->put({.error = stopping});
  queue_.clear();
}

void Engine::run() {
  constexpr auto kNap = std::chrono::microseconds(500);
  for (;;) {
    admit();
    const bool has_worked = step_all();
    const std::optional<PoolHealth> health = count_pool_health();
    std::unique_lock lock(mutex_);
    pool_health_ = health;
    if (is_stopping_) break;
    if (has_worked) continue;
    if (busy_slots_ > 0) {
      changed_.wait_for(lock, kNap);
    } else {
      changed_.wait(lock, [this] { return is_stopping_ || !queue_.empty(); });
    }
  }
  cancel_all();
}

}  // namespace cachalot::llama
