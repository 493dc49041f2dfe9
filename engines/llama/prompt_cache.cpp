#include "prompt_cache.h"

#include <algorithm>
#include <chrono>
#include <thread>

#include "base/clock.h"
#include "blob_layout.h"
#include "block_hash/block_hasher.h"
#include "prompt_cache_impl.h"
#include "suitability.h"

namespace cachalot::llama {
namespace {

constexpr std::size_t kLoadBatch = 16;     // blocks imported under one pin: pins should be short
constexpr std::uint32_t kGrantBlocks = 8;  // blocks are large, and stored one at a time

const std::uint8_t* as_bytes(const std::byte* at) {
  return reinterpret_cast<const std::uint8_t*>(at);
}

bool poll_until(std::uint64_t timeout_ns, const std::function<bool()>& is_done) {
  constexpr auto kPause = std::chrono::milliseconds(5);
  const std::uint64_t begin_ns = base::SteadyClock::read();
  while (!is_done()) {
    if (base::SteadyClock::read() - begin_ns >= timeout_ns) return false;
    std::this_thread::sleep_for(kPause);
  }
  return true;
}

class Stopwatch {
 public:
  explicit Stopwatch(std::uint64_t& total_ns)
      : total_ns_(total_ns), began_ns_(base::SteadyClock::read()) {}
  ~Stopwatch() { total_ns_ += base::SteadyClock::read() - began_ns_; }

 private:
  std::uint64_t& total_ns_;
  std::uint64_t began_ns_;
};

}  // namespace

// --- Attaching -----------------------------------------------------------------------------------

Result<std::unique_ptr<PromptCache>> PromptCache::attach(llama_context* context,
                                                         const PromptCacheOptions& options) {
  const llama_seq_id last = static_cast<llama_seq_id>(llama_n_seq_max(context)) - 1;
  const llama_seq_id scratch = options.scratch_seq < 0 ? last : options.scratch_seq;
  CACHALOT_TRY_ASSIGN(BlobLayout layout,
                      try_context(context, options.origin.context, scratch, options.block_tokens));
  CACHALOT_TRY_ASSIGN(std::string fingerprint,
                      fingerprint_of(context, options.origin, devices_of(options.origin.model),
                                     layout.describe(), options.block_tokens));
  if (options.host_cache && options.host_cache->capacity_bytes() < layout.bytes()) {
    return Error::make(
        Code::kInvalidArgument,
        "host cache: %llu bytes, expected at least a block of this model, %llu bytes",
        static_cast<unsigned long long>(options.host_cache->capacity_bytes()),
        static_cast<unsigned long long>(layout.bytes()));
  }
  OpaqueOptions attach;
  attach.pool = options.pool;
  attach.fingerprint = fingerprint;
  attach.block_bytes = layout.bytes();
  attach.block_tokens = options.block_tokens;
  attach.host = options.host;
  attach.grant_blocks = kGrantBlocks;
  attach.checksums = true;
  attach.pinned_reads = true;
  attach.allow_foreign_pool = options.allow_foreign_pool;
  attach.counts_prompts = true;
  attach.keeper_timeout_ns = options.keeper_timeout_ns;
  attach.recovery_ns = 0;  // what cannot be stored now is computed again
  std::optional<OpaqueClient> client;
  if (!options.pool.empty()) {
    CACHALOT_TRY_ASSIGN(OpaqueClient attached, OpaqueClient::attach(attach));
    client.emplace(std::move(attached));
  }
  return std::unique_ptr<PromptCache>(new PromptCache(std::make_unique<Impl>(
      context, scratch, options, std::move(layout), std::move(fingerprint), std::move(client))));
}

PromptCache::PromptCache(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
PromptCache::~PromptCache() = default;

std::uint32_t PromptCache::block_tokens() const {
  return impl_->options.block_tokens;
}
std::uint64_t PromptCache::block_bytes() const {
  return impl_->layout.bytes();
}
const std::string& PromptCache::fingerprint() const {
  return impl_->fingerprint;
}
bool PromptCache::has_pool() const {
  return impl_->client.has_value();
}
const PromptCacheStatistics& PromptCache::statistics() const {
  if (impl_->client) impl_->statistics.damaged_blocks = impl_->client->statistics().damaged_blocks;
  return impl_->statistics;
}

PromptCache::Impl::Impl(llama_context* of, llama_seq_id scratch_seq,
                        const PromptCacheOptions& given, BlobLayout blob_layout,
                        std::string namespace_text, std::optional<OpaqueClient> attached)
    : context(of),
      memory(llama_get_memory(of)),
      scratch(scratch_seq),
      options(given),
      layout(std::move(blob_layout)),
      fingerprint(std::move(namespace_text)),
      client(std::move(attached)) {}

std::vector<BlockHash> PromptCache::hash_tokens(std::span<const llama_token> tokens) const {
  const std::vector<std::uint32_t> ids(tokens.begin(), tokens.end());
  // The same names with and without a pool.
  std::vector<BlockHash> hashes(ids.size() / block_tokens());
  block_hash::BlockHasher hasher =
      block_hash::BlockHasher::xxh3(block_hash::make_namespace(impl_->fingerprint));
  hasher.hash_blocks(hasher.root(), ids, block_tokens(), hashes);
  return hashes;
}

std::size_t PromptCache::lookup(std::span<const BlockHash> hashes) const {
  if (!impl_->has_pool()) return 0;
  const Result<std::size_t> found = impl_->client->lookup(hashes);
  return found ? *found : 0;
}

// --- Processes without a common pool -------------------------------------------------------------

Result<std::shared_ptr<Handover>> PromptCache::open_handover(const HandoverOptions& options) const {
  const Origin& origin = impl_->options.origin;
  BlockIdentity identity;
  identity.model = origin.model_digest;
  if (identity.model.empty()) {
    CACHALOT_TRY_ASSIGN(identity.model, digest_of_model(origin));
  }
  identity.kv_types = std::string(ggml_type_name(origin.context.type_k)) + "/" +
                      ggml_type_name(origin.context.type_v);
  identity.block_tokens = block_tokens();
  CACHALOT_TRY_ASSIGN(identity.fingerprint, digest_of_text(impl_->fingerprint));
  return Handover::open(options, identity, block_bytes());
}

void PromptCache::set_handover(std::shared_ptr<Handover> handover) {
  impl_->handover = std::move(handover);
}

std::optional<PromptReference> PromptCache::offer(llama_seq_id seq,
                                                  std::span<const llama_token> tokens) {
  if (!impl_->handover || tokens.empty()) return {};
  const std::vector<BlockHash> hashes = hash_tokens(tokens.first(tokens.size() - 1));
  return impl_->handover->offer(hashes, [&](std::size_t block, std::span<std::byte> room) {
    return impl_->export_block(seq, room, block);
  });
}

// --- Storage behind the pool ---------------------------------------------------------------------

StoredBlocks PromptCache::ask_storage(std::span<const llama_token> tokens) {
  const std::vector<BlockHash> hashes = hash_tokens(tokens);
  const std::size_t loadable = tokens.empty() ? 0 : (tokens.size() - 1) / block_tokens();
  return impl_->ask_storage(std::span(hashes).first(loadable));
}

bool PromptCache::wait_for_storage(std::uint64_t timeout_ns) {
  return impl_->client && poll_until(timeout_ns, [this] {
           const Result<bool> is_up = impl_->client->has_storage();
           return is_up && *is_up;
         });
}

bool PromptCache::flush_to_storage(std::uint64_t timeout_ns) {
  return impl_->client && poll_until(timeout_ns, [this] {
           const Result<std::uint64_t> backlog = impl_->client->storage_backlog();
           return backlog && *backlog == 0;
         });
}

StoredBlocks PromptCache::Impl::ask_storage(std::span<const BlockHash> hashes) {
  const std::uint64_t now_ns = base::SteadyClock::read();
  if (!client || !options.prefetch || hashes.empty() || now_ns < asks_after_ns) return {};
  const std::size_t in_host = options.host_cache ? options.host_cache->lookup(hashes) : 0;
  const std::size_t least =
      (options.prefetch->threshold_tokens + options.block_tokens - 1) / options.block_tokens;
  if (hashes.size() - in_host < std::max<std::size_t>(least, 1)) return {};
  const Result<Prefetched> found = client->prefetch(hashes, 0, least);
  if (found) return {now_ns, found->in_pool, found->in_storage};
  asks_after_ns = base::SteadyClock::read() + options.retry_ns;
  warn(found.error());
  return {};
}

// Until then a prompt waits for blocks from storage.
std::uint64_t PromptCache::Impl::storage_deadline_ns(const StoredBlocks& stored) const {
  switch (options.prefetch->stop) {
    case PrefetchStop::kBestEffort:
      return stored.asked_ns;
    case PrefetchStop::kWaitComplete:
      return ~std::uint64_t{0};
    case PrefetchStop::kTimeout:
      break;
  }
  const double ki_tokens =
      static_cast<double>(stored.in_storage_blocks * options.block_tokens) / 1024;
  return stored.asked_ns + options.prefetch->timeout_base_ns +
         static_cast<std::uint64_t>(static_cast<double>(options.prefetch->timeout_per_ki_token_ns) *
                                    ki_tokens);
}

// --- Trouble -------------------------------------------------------------------------------------

// Whether the pool is still the one that others find at its path: one that was destroyed, and perhaps made
// anew, is not shared. For the beginning of a prompt; it looks about once a second.
bool PromptCache::Impl::is_there() {
  constexpr std::uint64_t kLookNs = 1'000'000'000;
  const std::uint64_t now_ns = base::SteadyClock::read();
  if (is_gone || now_ns < next_look_ns) return !is_gone;
  next_look_ns = now_ns + kLookNs;
  const Status there = client->check_pool();
  if (there) return true;
  is_gone = true;
  const std::string message =
      std::string(there.error().message) + ": restart the engine to share again";
  if (options.on_warning) options.on_warning(message.c_str());
  return false;
}

// Trouble with the keeper costs a wait each time it is met, so for a while it is not looked for.
bool PromptCache::Impl::is_resting() const {
  return base::SteadyClock::read() < rests_until_ns;
}

void PromptCache::Impl::rest(const Error& error) {
  ++statistics.pool_failures;
  warn(error);
  // Longer every time, so that a keeper that hangs for good costs next to nothing.
  constexpr std::uint64_t kMostRests = 32;
  rest_ns = rest_ns == 0 ? options.retry_ns : std::min(2 * rest_ns, kMostRests * options.retry_ns);
  rests_until_ns = base::SteadyClock::read() + rest_ns;
}

void PromptCache::Impl::warn(const Error& error) {
  const std::uint32_t bit = 1u << static_cast<std::uint32_t>(error.code);
  if ((warned_of.fetch_or(bit) & bit) != 0) return;
  if (options.on_warning) options.on_warning(error.message);
}

// --- Loading -------------------------------------------------------------------------------------

std::size_t PromptCache::load(llama_seq_id seq, std::span<const BlockHash> hashes,
                              std::size_t first) {
  const Stopwatch watch(impl_->statistics.load_ns);
  first += impl_->load_from_host(seq, hashes.subspan(first), first);
  if (!impl_->has_pool()) return first;
  while (first < hashes.size()) {
    const std::size_t count = std::min(kLoadBatch, hashes.size() - first);
    const std::size_t loaded = impl_->load_batch(seq, hashes.subspan(first, count), first);
    first += loaded;
    if (loaded < count) break;
  }
  return first;
}

// @return how many blocks `seq` has more now
std::size_t PromptCache::Impl::load_from_host(llama_seq_id seq, std::span<const BlockHash> hashes,
                                              std::size_t first) {
  if (!options.host_cache) return 0;
  std::size_t taken = 0;
  for (; taken < hashes.size(); ++taken) {
    const std::optional<HostCache::Pinned> block = options.host_cache->pin(hashes[taken]);
    if (!block) break;
    if (import(seq, block->bytes(), first + taken) != OpaqueClient::Import::kTaken) break;
  }
  statistics.host_blocks += taken;
  return taken;
}

// Under one pin. @return how many blocks `seq` has more now
std::size_t PromptCache::Impl::load_batch(llama_seq_id seq, std::span<const BlockHash> hashes,
                                          std::size_t first) {
  if (is_resting() && !client->is_attached()) return 0;
  const Result<OpaqueClient::Imported> imported = client->load_in_place(
      hashes,
      [&](std::size_t i, std::span<const std::byte> blob) { return import(seq, blob, first + i); });
  if (!imported) {
    rest(imported.error());
    return 0;
  }
  const auto [taken, revoked, is_damaged] = *imported;
  if (is_damaged) {
    warn(Error::make(
        Code::kCorrupt,
        "block %zu of a prompt: its bytes differ from those that were stored; it is computed again",
        first + taken));
  }
  if (revoked != 0) {
    statistics.stale_blocks += revoked;
    llama_memory_seq_rm(memory, seq, position_of(first + taken), -1);
  }
  statistics.loaded_blocks += taken;
  statistics.loaded_bytes += taken * layout.bytes();
  return taken;
}

// @return kTaken: it is in `seq` now; else the sequence is as it was
OpaqueClient::Import PromptCache::Impl::import(llama_seq_id seq, std::span<const std::byte> blob,
                                               std::size_t block) {
  if (!layout.holds(blob.data(), position_of(block))) return OpaqueClient::Import::kDamaged;
  const std::size_t taken =
      llama_state_seq_set_data_ext(context, as_bytes(blob.data()), blob.size(), scratch, 0);
  if (taken == blob.size()) llama_memory_seq_cp(memory, scratch, seq, -1, -1);
  llama_memory_seq_rm(memory, scratch, -1, -1);
  if (taken == blob.size()) return OpaqueClient::Import::kTaken;
  ++statistics.unloaded_blocks;
  return OpaqueClient::Import::kRefused;
}

// Has the keeper drop a block that was found damaged, and all blocks after it. Bounded, since a block that
// looks damaged to one process may not to another (a machine whose memory is bad): each name once in a
// minute, and no more than kMostDropped names.
// @return whether the block is to be stored again
bool PromptCache::Impl::drop_damaged(const BlockHash& hash) {
  constexpr std::uint64_t kMinuteNs = 60'000'000'000;
  constexpr std::size_t kMostDropped = 64;
  if (is_resting()) return false;
  const std::uint64_t now_ns = base::SteadyClock::read();
  while (!dropped.empty() && now_ns - dropped.front().at_ns >= kMinuteNs) dropped.pop_front();
  const bool is_known = std::any_of(dropped.begin(), dropped.end(),
                                    [&](const Dropped& other) { return other.hash == hash; });
  if (is_known || dropped.size() == kMostDropped) return false;
  const Result<bool> is_gone_now = client->drop_damaged(hash);
  if (!is_gone_now) {
    give_up(is_gone_now.error());
    return false;
  }
  if (!*is_gone_now) return false;  // another process has replaced it
  dropped.push_back({hash, now_ns});
  ++statistics.replaced_chains;
  return true;
}

// --- Storing -------------------------------------------------------------------------------------

std::size_t PromptCache::store(llama_seq_id seq, std::span<const BlockHash> hashes,
                               std::size_t first) {
  const Stopwatch watch(impl_->statistics.store_ns);
  for (; first < hashes.size(); ++first) {
    if (impl_->is_resting() || !impl_->store_block(seq, hashes, first)) {
      impl_->statistics.unstored_blocks += hashes.size() - first;
      break;
    }
  }
  return first;
}

std::size_t PromptCache::keep(llama_seq_id seq, std::span<const BlockHash> hashes,
                              std::size_t first) {
  HostCache* const host = impl_->options.host_cache.get();
  for (; host != nullptr && first < hashes.size(); ++first) {
    const BlockHash* const parent = first == 0 ? nullptr : &hashes[first - 1];
    const auto fill = [&](std::span<std::byte> room) {
      return impl_->export_block(seq, room, first);
    };
    if (!host->add(parent, hashes[first], block_bytes(), fill)) break;
  }
  return first;
}

// @return whether the block is in the pool now
bool PromptCache::Impl::store_block(llama_seq_id seq, std::span<const BlockHash> hashes,
                                    std::size_t block) {
  const BlockHash* const parent = block == 0 ? nullptr : &hashes[block - 1];
  const Result<Stored> stored = client->store_in_place(
      parent, hashes.subspan(block, 1),
      [&](std::size_t, std::span<std::byte> room) { return export_block(seq, room, block); });
  if (!stored) {
    give_up(stored.error());
    return false;
  }
  rest_ns = 0;
  statistics.stored_blocks += stored->written;
  statistics.stored_bytes += stored->written * layout.bytes();
  statistics.duplicate_blocks += stored->blocks - stored->written;
  return stored->blocks == 1;  // else the pool is full, or the parent was evicted
}

// A full pool, or a fragmented context, is no trouble of the keeper's.
void PromptCache::Impl::give_up(const Error& error) {
  const bool is_keepers =
      error.code == Code::kNoKeeper || error.code == Code::kTimeout || error.code == Code::kBusy;
  if (is_keepers) return rest(error);
  ++statistics.pool_failures;
  warn(error);
}

// Writes one block of `seq`.
// @errors kUnsupported: the sequence does not hold these tokens in the order of their positions
Status PromptCache::Impl::export_block(llama_seq_id seq, std::span<std::byte> room,
                                       std::size_t block) {
  llama_memory_seq_cp(memory, seq, scratch, position_of(block), position_of(block + 1));
  const std::size_t bytes = llama_state_seq_get_data_ext(
      context, reinterpret_cast<std::uint8_t*>(room.data()), room.size(), scratch, 0);
  llama_memory_seq_rm(memory, scratch, -1, -1);
  if (bytes == room.size() && layout.holds(room.data(), position_of(block))) return {};
  return Error::make(Code::kUnsupported,
                     "block %zu of a prompt: its cells are not in the order of their positions",
                     block);
}

}  // namespace cachalot::llama
