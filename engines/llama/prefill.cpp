#include "prefill.h"

#include <time.h>

#include <algorithm>
#include <optional>
#include <vector>

#include "base/clock.h"
#include "prompt_cache_impl.h"

namespace cachalot::llama {
namespace {

constexpr long kNapNs = 500'000;  // between two looks for another process's block

struct Batch {
  explicit Batch(std::uint32_t tokens)
      : batch(llama_batch_init(static_cast<std::int32_t>(tokens), 0, 1)) {}
  Batch(const Batch&) = delete;
  Batch& operator=(const Batch&) = delete;
  ~Batch() { llama_batch_free(batch); }
  llama_batch batch;
};

Error error_of_decode(std::int32_t status) {
  if (status == 1)
    return Error::make(Code::kNoSpace, "prompt: the context's KV cache has no room for it");
  if (status == 2) return Error::make(Code::kCancelled, "prompt: its computation was aborted");
  return Error::make(Code::kInternal, "prompt: llama_decode failed with %d", status);
}

}  // namespace

struct Prefill::Impl {
  Impl(llama_context* of, PromptCache* pool_cache, llama_seq_id sequence,
       std::vector<llama_token> prompt, std::size_t kept, std::uint32_t chunk)
      : context(of),
        cache(pool_cache),
        seq(sequence),
        tokens(std::move(prompt)),
        block_tokens(pool_cache == nullptr ? chunk : pool_cache->block_tokens()) {
    report.prompt_tokens = tokens.size();
    report.kept_tokens = kept;
  }

  Status begin();
  bool waits_for_storage();
  std::size_t storage_blocks_within(std::size_t first, std::size_t end) const;
  Status check() const;
  Result<State> step();
  State take_turn();
  bool look();
  void ask_other_process();
  bool waits_for_transfer();
  bool import_arrival();
  State end_of_step();
  void count_prompt();
  Status compute_chunk();
  void publish();
  void keep(std::size_t whole);
  void look_at_damage();
  void replace_damaged();
  void open_claims();
  std::size_t block() const { return at / block_tokens; }

  llama_context* context;
  PromptCache* cache;
  llama_seq_id seq;
  std::vector<llama_token> tokens;
  std::uint32_t block_tokens;
  Report report;

  bool begun = false, done = false;
  bool wants_logits = true;
  std::size_t at = 0;        // tokens that the sequence holds
  std::size_t loadable = 0;  // blocks that may come from the pool: at least one token is computed
  bool has_pool = false;
  std::size_t published = 0;          // blocks known to be in the pool
  std::size_t in_host = 0;            // and in the host cache
  std::optional<StoredBlocks> asked;  // what the storage behind the pool brings
  bool awaits_storage = false;
  std::uint64_t waits_since_ns = 0, next_question_ns = 0;
  std::optional<PromptReference> reference;  // of another process's blocks
  std::optional<Handover::Arrival> arrival;  // those that the other sources did not have
  std::uint64_t arrival_since_ns = 0;        // asked; 0: it has arrived
  bool stores = true;             // until something goes wrong: then the rest has no parent
  std::vector<BlockHash> hashes;  // of all whole blocks
  std::optional<OpaqueClient::Claims> claims;
  // The first block that was computed because its bytes in the pool are not those that were stored, until
  // it is replaced. Its claim and those behind are kept until then.
  std::optional<std::size_t> damaged;
  std::optional<Batch> batch;
  std::uint64_t waiting_since_ns = 0;  // 0: not waiting
};

Status Prefill::Impl::check() const {
  if (tokens.empty()) return Error::make(Code::kInvalidArgument, "prompt: it is empty");
  if (tokens.size() > llama_n_ctx_seq(context)) {
    return Error::make(Code::kInvalidArgument, "prompt: %zu tokens, the context has room for %u",
                       tokens.size(), llama_n_ctx_seq(context));
  }
  if (block_tokens == 0 || block_tokens > llama_n_ubatch(context) ||
      block_tokens > llama_n_batch(context)) {
    return Error::make(
        Code::kInvalidArgument,
        "prompt: a block of %u tokens is not within 1 to n_ubatch = %u and n_batch = %u",
        block_tokens, llama_n_ubatch(context), llama_n_batch(context));
  }
  if (seq < 0 || static_cast<std::uint32_t>(seq) >= llama_n_seq_max(context)) {
    return Error::make(Code::kInvalidArgument, "prompt: sequence %d is not below n_seq_max = %u",
                       seq, llama_n_seq_max(context));
  }
  const std::int32_t vocabulary =
      llama_vocab_n_tokens(llama_model_get_vocab(llama_get_model(context)));
  for (const llama_token token : tokens) {
    if (token >= 0 && token < vocabulary) continue;
    return Error::make(Code::kInvalidArgument, "prompt: token %d is not one of the model's %d",
                       token, vocabulary);
  }
  return {};
}

Status Prefill::Impl::begin() {
  CACHALOT_TRY(check());
  loadable = (tokens.size() - wants_logits) / block_tokens;
  const llama_memory_t memory = llama_get_memory(context);
  const llama_pos last = llama_memory_seq_pos_max(memory, seq);
  const std::size_t held = last < 0 ? 0 : static_cast<std::size_t>(last) + 1;
  at = std::min({report.kept_tokens / block_tokens, held / block_tokens, loadable}) * block_tokens;
  report.kept_tokens = at;
  llama_memory_seq_rm(memory, seq, static_cast<llama_pos>(at), -1);
  batch.emplace(block_tokens);
  if (cache == nullptr) return {};
  PromptCache::Impl& pool = *cache->impl_;
  has_pool = pool.client && pool.is_there();
  const bool takes_over = reference && pool.handover;
  if (!has_pool && !pool.options.host_cache && !takes_over) cache = nullptr;
  if (cache == nullptr) return {};
  hashes = cache->hash_tokens(tokens);
  if (pool.options.host_cache) in_host = pool.options.host_cache->lookup(hashes);
  if (has_pool) published = cache->lookup(hashes);
  if (takes_over) ask_other_process();
  if (!has_pool) return {};
  if (!asked) {
    asked.emplace();
    if (published < loadable && !pool.is_resting())
      *asked = pool.ask_storage(std::span(hashes).first(loadable));
  }
  awaits_storage = asked->in_storage_blocks != 0;
  return {};
}

// Until all has come, nothing comes any more, or the policy says stop.
bool Prefill::Impl::waits_for_storage() {
  constexpr std::uint64_t kQuestionNs = 20'000'000;  // between two questions to the keeper
  if (!awaits_storage) return false;
  PromptCache::Impl& pool = *cache->impl_;
  const std::uint64_t now_ns = base::SteadyClock::read();
  if (waits_since_ns == 0) {
    waits_since_ns = now_ns;
    next_question_ns = now_ns + kQuestionNs;
  }
  const std::size_t expected = std::min(loadable, asked->in_pool_blocks + asked->in_storage_blocks);
  published = std::max(published, cache->lookup(std::span(hashes).first(expected)));
  report.storage_wait_ns = now_ns - waits_since_ns;
  awaits_storage = published < expected && now_ns < pool.storage_deadline_ns(*asked);
  if (!awaits_storage || now_ns < next_question_ns) return awaits_storage;
  next_question_ns = now_ns + kQuestionNs;
  const Result<bool> comes = pool.client->is_fetching(
      std::span(hashes).subspan(asked->in_pool_blocks, expected - asked->in_pool_blocks));
  if (!comes) pool.rest(comes.error());
  awaits_storage = comes && *comes;
  return awaits_storage;
}

// How many of blocks [first, end) storage was asked for.
std::size_t Prefill::Impl::storage_blocks_within(std::size_t first, std::size_t end) const {
  if (!asked) return 0;
  const std::size_t begin = std::max(first, asked->in_pool_blocks);
  const std::size_t last = std::min(end, asked->in_pool_blocks + asked->in_storage_blocks);
  return last > begin ? last - begin : 0;
}

Result<Prefill::State> Prefill::Impl::step() {
  if (done) return State::kDone;
  if (!begun) {
    CACHALOT_TRY(begin());
    begun = true;
    if (at == tokens.size()) done = true;
    if (done) return State::kDone;
  }
  if (cache != nullptr && waits_for_storage()) return State::kWaiting;
  if (waits_for_transfer()) return State::kWaiting;
  if (import_arrival()) return end_of_step();
  if (cache != nullptr && block() < loadable) {
    const std::size_t before = at;
    if (take_turn() == State::kWaiting) return State::kWaiting;
    if (at != before) return end_of_step();
  }
  if (cache != nullptr) look_at_damage();
  CACHALOT_TRY(compute_chunk());
  if (cache != nullptr) publish();
  return end_of_step();
}

// Blocks that neither the sequence nor the host cache had were asked for.
void Prefill::Impl::count_prompt() {
  const std::size_t own = (report.kept_tokens + report.host_tokens) / block_tokens;
  PromptBlocks prompt;
  prompt.asked = loadable - own;
  prompt.from_storage = report.storage_tokens / block_tokens;
  prompt.from_pool = report.loaded_tokens / block_tokens - prompt.from_storage;
  prompt.from_peers = report.transferred_tokens / block_tokens;
  (void)cache->impl_->client->count_prompt(prompt);  // fails only after a detach
}

Prefill::State Prefill::Impl::end_of_step() {
  done = at == tokens.size();
  if (!done) return State::kMore;
  if (has_pool) count_prompt();
  if (asked)
    report.unused_storage_tokens = asked->in_storage_blocks * block_tokens - report.storage_tokens;
  if (damaged) replace_damaged();
  claims.reset();
  return State::kDone;
}

// Takes what is in the pool. @return kWaiting: another engine computes the next block; kMore: compute it,
// unless some were taken
Prefill::State Prefill::Impl::take_turn() {
  if (look() || !has_pool) return State::kMore;
  if (claims && claims->count() != 0) return State::kMore;
  const std::uint64_t now_ns = base::SteadyClock::read();
  if (waiting_since_ns != 0) {
    report.wait_ns += now_ns - waiting_since_ns;
    waiting_since_ns = 0;
  }
  open_claims();
  if (!claims || report.wait_ns >= cache->impl_->options.flight_wait_ns) return State::kMore;
  if (claims->claim(std::span(hashes).subspan(block())) == 0) {
    waiting_since_ns = now_ns;
    return State::kWaiting;
  }
  // Its last holder may have published it between the look and the claim.
  (void)look();
  return State::kMore;
}

// @return whether blocks came from the pool
bool Prefill::Impl::look() {
  const std::uint64_t began_ns = base::SteadyClock::read();
  const std::size_t before = block();
  const std::uint64_t host_before = cache->impl_->statistics.host_blocks;
  const std::size_t loaded = cache->load(seq, std::span(hashes).first(loadable), before);
  const std::size_t from_pool = before + (cache->impl_->statistics.host_blocks - host_before);
  at = loaded * block_tokens;
  if (loaded > from_pool) published = std::max(published, loaded);
  report.host_tokens += (from_pool - before) * block_tokens;
  report.loaded_tokens += (loaded - from_pool) * block_tokens;
  report.storage_tokens += storage_blocks_within(from_pool, loaded) * block_tokens;
  keep(loaded);
  // What is held begins with the next block.
  if (claims && !damaged) claims->release(loaded - before);
  if (loaded != before) report.load_ns += base::SteadyClock::read() - began_ns;
  return loaded != before;
}

void Prefill::Impl::ask_other_process() {
  PromptCache::Impl& pool = *cache->impl_;
  const std::size_t first = std::max({block(), in_host, published});
  std::optional<Handover::Arrival> asked_for =
      pool.handover->ask(*reference, std::span(hashes).first(loadable), first);
  if (asked_for) arrival.emplace(*std::move(asked_for));
  arrival_since_ns = base::SteadyClock::read();
}

// Blocks before those of the transfer come from elsewhere meanwhile.
bool Prefill::Impl::waits_for_transfer() {
  if (!arrival || block() < arrival->first() || block() >= arrival->end()) return false;
  const Handover::Arrival::State state = arrival->state();
  if (arrival_since_ns != 0) report.transfer_wait_ns = base::SteadyClock::read() - arrival_since_ns;
  if (state == Handover::Arrival::kComing) return true;
  arrival_since_ns = 0;
  if (state == Handover::Arrival::kFailed) arrival.reset();
  return false;
}

// After waits_for_transfer(). @return whether blocks were taken
bool Prefill::Impl::import_arrival() {
  if (!arrival || block() < arrival->first() || block() >= arrival->end()) return false;
  PromptCache::Impl& pool = *cache->impl_;
  const std::uint64_t began_ns = base::SteadyClock::read();
  const std::size_t before = block();
  while (block() < arrival->end()) {
    const OpaqueClient::Import taken = pool.import(seq, arrival->block(block()), block());
    if (taken == OpaqueClient::Import::kDamaged) {
      pool.handover->log("blocks of a transfer are computed",
                         Error::make(Code::kCorrupt,
                                     "block %zu is no block of this model at its "
                                     "position",
                                     block()));
    }
    if (taken != OpaqueClient::Import::kTaken) break;
    at += block_tokens;
  }
  arrival.reset();
  const std::size_t blocks = block() - before;
  pool.statistics.transferred_blocks += blocks;
  report.transferred_tokens += blocks * block_tokens;
  report.load_ns += base::SteadyClock::read() - began_ns;
  if (blocks == 0) return false;
  // All claims but the last one, which publish() gives up.
  const std::size_t claimed = claims && !damaged ? std::min(claims->count(), blocks) : 0;
  if (claimed > 1) claims->release(claimed - 1);
  publish();
  return true;
}

// Before a chunk is computed. A damaged block is replaced once, by the engine that has claimed it: an engine that
// does not hold the claim leaves it to the holder. The blocks after it in the pool may be sound, and
// goes with it, so it is taken from there first.
void Prefill::Impl::look_at_damage() {
  if (!has_pool) return;
  const bool is_here = block() < loadable && cache->impl_->client->is_damaged(hashes[block()]);
  if (damaged) {
    if (!is_here) replace_damaged();
  } else if (is_here && (!claims || claims->count() != 0)) {
    damaged = block();
  }
}

// Drops what is in the pool from the damaged block on, and stores what the sequence has of it.
void Prefill::Impl::replace_damaged() {
  const std::size_t first = *damaged;
  if (cache->impl_->drop_damaged(hashes[first])) published = std::min(published, first);
  damaged.reset();
  const std::size_t claimed = claims ? std::min(claims->count(), block() - first) : 0;
  // All claims but the last one, which publish() gives up.
  if (claimed > 1) claims->release(claimed - 1);
  publish();
}

// Puts blocks of the sequence into the host cache, up to `whole`.
void Prefill::Impl::keep(std::size_t whole) {
  if (in_host < whole) in_host = cache->keep(seq, std::span(hashes).first(whole), in_host);
}

void Prefill::Impl::open_claims() {
  if (claims || cache->impl_->options.flight_wait_ns == 0) return;
  Result<OpaqueClient::Claims> opened = cache->impl_->client->open_claims();
  if (opened) return claims.emplace(*std::move(opened)), void();
  cache->impl_->warn(opened.error());
}

// From `at` to the end of its block, or of the prompt.
Status Prefill::Impl::compute_chunk() {
  const std::uint64_t began_ns = base::SteadyClock::read();
  const std::size_t end = std::min(tokens.size(), at + block_tokens);
  llama_batch& chunk = batch->batch;
  chunk.n_tokens = static_cast<std::int32_t>(end - at);
  for (std::int32_t i = 0; i < chunk.n_tokens; ++i) {
    chunk.token[i] = tokens[at + static_cast<std::size_t>(i)];
    chunk.pos[i] = static_cast<llama_pos>(at) + i;
    chunk.n_seq_id[i] = 1;
    chunk.seq_id[i][0] = seq;
    // Every chunk has one, for its shape: a block is computed in the same way in the middle of a prompt
    // and at the end.
    chunk.logits[i] = i + 1 == chunk.n_tokens;
  }
  if (const std::int32_t status = llama_decode(context, chunk); status != 0)
    return error_of_decode(status);
  report.computed_tokens += end - at;
  at = end;
  report.compute_ns += base::SteadyClock::read() - began_ns;
  return {};
}

// Stores whole blocks that are not in the pool yet, and gives up the claim on the one just computed.
void Prefill::Impl::publish() {
  const std::size_t whole = block();
  keep(whole);
  if (!has_pool) return;
  const bool is_last = at == tokens.size();
  // While the keeper is left alone, nothing; when the prompt is done what was not stored is counted.
  if (stores && published < whole && (is_last || !cache->impl_->is_resting())) {
    const std::uint64_t began_ns = base::SteadyClock::read();
    const std::size_t stored = cache->store(seq, std::span(hashes).first(whole), published);
    report.stored_blocks += stored - published;
    report.store_ns += base::SteadyClock::read() - began_ns;
    published = stored;
    stores = stored == whole || cache->impl_->is_resting();
  }
  if (!claims || damaged) return;
  // No engine needs to wait for blocks that will not be stored.
  if (!stores)
    claims->release_all();
  else if (at % block_tokens == 0)
    claims->release();
}

Prefill::Prefill(llama_context* context, PromptCache* cache, llama_seq_id seq,
                 std::vector<llama_token> tokens, std::size_t kept_tokens,
                 std::uint32_t block_tokens)
    : impl_(std::make_unique<Impl>(context, cache, seq, std::move(tokens), kept_tokens,
                                   block_tokens)) {}
Prefill::~Prefill() = default;
Prefill::Prefill(Prefill&&) noexcept = default;
Prefill& Prefill::operator=(Prefill&&) noexcept = default;

void Prefill::expect(const StoredBlocks& stored) {
  impl_->asked = stored;
}

void Prefill::take_over(const PromptReference& reference) {
  impl_->reference = reference;
}

void Prefill::only_fill() {
  impl_->wants_logits = false;
}

Result<Prefill::State> Prefill::step() {
  Result<State> state = impl_->step();
  if (!state) {
    impl_->claims.reset();
    if (impl_->begun && impl_->wants_logits)
      llama_memory_seq_rm(llama_get_memory(impl_->context), impl_->seq, -1, -1);
  }
  return state;
}

Status Prefill::run() {
  for (;;) {
    CACHALOT_TRY_ASSIGN(const State state, step());
    if (state == State::kDone) return {};
    if (state != State::kWaiting) continue;
    const timespec nap{0, kNapNs};
    nanosleep(&nap, nullptr);
  }
}

const Prefill::Report& Prefill::report() const {
  return impl_->report;
}

std::size_t Prefill::keepable_tokens() const {
  return impl_->done ? impl_->tokens.size() / impl_->block_tokens * impl_->block_tokens : 0;
}

}  // namespace cachalot::llama
