#include "prompt_cache.h"

#include <algorithm>
#include <array>
#include <cstring>

#include "base/clock.h"
#include "blob_layout.h"
#include "block_hash/block_hasher.h"
#include "memory/fused_hash.h"
#include "pool/pool.h"
#include "prompt_cache_impl.h"
#include "suitability.h"

namespace cachalot::llama {
namespace {

constexpr std::size_t kLoadBatch = 16;     // blocks imported under one pin: pins should be short
constexpr std::uint32_t kGrantTarget = 8;  // blocks are large, and stored one at a time

const std::uint8_t* as_bytes(const std::byte* at) {
  return reinterpret_cast<const std::uint8_t*>(at);
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
  CACHALOT_TRY_ASSIGN(
      pool::Pool pool,
      pool::Pool::open(options.pool, {.allow_foreign = options.allow_foreign_pool}));
  const std::uint64_t most = pool.access().geometry.block_bytes;
  if (layout.bytes() > most) {
    return Error::make(
        Code::kInvalidArgument,
        "%.80s: its blocks have %llu bytes; %u tokens of this model are %llu: make a pool with "
        "--block-bytes %llu",
        options.pool[0].c_str(), static_cast<unsigned long long>(most), options.block_tokens,
        static_cast<unsigned long long>(layout.bytes()),
        static_cast<unsigned long long>(pool::padded_bytes(layout.bytes())));
  }
  pool::ClientOptions attach;
  attach.fingerprint = fingerprint;
  attach.host = options.host;
  attach.timeout_ns = options.keeper_timeout_ns;
  attach.grant_target = kGrantTarget;
  attach.verify_checksums = attach.write_checksums = true;
  attach.pins = true;
  CACHALOT_TRY_ASSIGN(pool::PoolClient client, pool.attach(attach));
  return std::unique_ptr<PromptCache>(new PromptCache(
      std::make_unique<Impl>(context, scratch, options, std::move(layout), std::move(fingerprint),
                             std::move(pool), std::move(client))));
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
const PromptCacheStatistics& PromptCache::statistics() const {
  return impl_->statistics;
}

PromptCache::Impl::Impl(llama_context* of, llama_seq_id scratch_seq,
                        const PromptCacheOptions& given, BlobLayout blob_layout,
                        std::string namespace_text, pool::Pool opened, pool::PoolClient attached)
    : context(of),
      memory(llama_get_memory(of)),
      scratch(scratch_seq),
      options(given),
      layout(std::move(blob_layout)),
      fingerprint(std::move(namespace_text)),
      space(block_hash::make_namespace(fingerprint)),
      pool(std::move(opened)),
      client(std::move(attached)) {}

std::vector<BlockHash> PromptCache::hash_tokens(std::span<const llama_token> tokens) const {
  std::vector<BlockHash> hashes(tokens.size() / impl_->options.block_tokens);
  const std::vector<std::uint32_t> ids(tokens.begin(), tokens.end());
  block_hash::BlockHasher hasher = block_hash::BlockHasher::xxh3(impl_->space);
  hasher.hash_blocks(hasher.root(), ids, impl_->options.block_tokens, hashes);
  return hashes;
}

std::size_t PromptCache::lookup(std::span<const BlockHash> hashes) const {
  pool::KeeperView view;
  std::vector<pool::Found> found(hashes.size());
  return impl_->directory().lookup(hashes, impl_->client->namespace_id(), view, found);
}

// --- Trouble -------------------------------------------------------------------------------------

// Whether the pool is still the one that others find at its path: one that was destroyed, and perhaps made
// anew, is not shared. For the beginning of a prompt; it looks about once a second.
bool PromptCache::Impl::is_there() {
  constexpr std::uint64_t kLookNs = 1'000'000'000;
  const std::uint64_t now_ns = base::SteadyClock::read();
  if (is_gone || now_ns < next_look_ns) return !is_gone;
  next_look_ns = now_ns + kLookNs;
  const Status there = pool.check_still_there();
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
  if ((warned_of & bit) != 0) return;
  warned_of |= bit;
  if (options.on_warning) options.on_warning(error.message);
}

// --- Loading -------------------------------------------------------------------------------------

std::size_t PromptCache::load(llama_seq_id seq, std::span<const BlockHash> hashes,
                              std::size_t first) {
  const Stopwatch watch(impl_->statistics.load_ns);
  while (first < hashes.size()) {
    const std::size_t count = std::min(kLoadBatch, hashes.size() - first);
    const std::size_t loaded = impl_->load_batch(seq, hashes.subspan(first, count), first);
    first += loaded;
    if (loaded < count) break;
  }
  return first;
}

// Under one pin. @return how many blocks `seq` has more now
std::size_t PromptCache::Impl::load_batch(llama_seq_id seq, std::span<const BlockHash> hashes,
                                          std::size_t first) {
  std::array<pool::Found, kLoadBatch> found;
  // Most prompts end in new blocks: this check needs neither pin nor keeper.
  if (begin_read(hashes.first(1), found).found().empty()) return 0;
  if (is_resting() && client->is_lost()) return 0;
  const Result<std::uint64_t> pin = client->pin();
  if (!pin) {
    rest(pin.error());
    return 0;
  }
  pool::ValidatedRead read = begin_read(hashes, found);
  std::size_t taken = 0;
  Import last = Import::kTaken;
  while (taken < read.found().size()) {
    last = import(seq, found[taken].entry, first + taken);
    if (last != Import::kTaken) break;
    ++taken;
  }
  if (last == Import::kDamaged) read.reject(taken);
  read.shorten(taken);
  // Pinned blocks stay as they are, unless an operator fenced this process meanwhile: then not all of
  // it can be believed, nor that a block is damaged.
  const auto [valid, stale, is_damaged] = read.validate();
  client->unpin(*pin);
  if (is_damaged) note_damage(found[taken].entry, first + taken);
  if (valid < taken) {
    statistics.stale_blocks += taken - valid;
    llama_memory_seq_rm(memory, seq, position_of(first + valid), -1);
  }
  if (valid != 0) client->report_hit(found[valid - 1]);
  statistics.loaded_blocks += valid;
  statistics.loaded_bytes += valid * layout.bytes();
  return valid;
}

// @return kTaken: it is in `seq` now; else the sequence is as it was
PromptCache::Impl::Import PromptCache::Impl::import(llama_seq_id seq, const pool::Entry& entry,
                                                    std::size_t block) {
  if (entry.length != layout.bytes() || (entry.flags & pool::kEntryHasChecksum) == 0)
    return Import::kDamaged;
  const std::byte* const blob = fetch(entry);
  if (blob == nullptr || !layout.holds(blob, position_of(block))) return Import::kDamaged;
  base::reach(base::FailPoint::kReadCopied);
  const std::size_t taken =
      llama_state_seq_set_data_ext(context, as_bytes(blob), layout.bytes(), scratch, 0);
  if (taken == layout.bytes()) llama_memory_seq_cp(memory, scratch, seq, -1, -1);
  llama_memory_seq_rm(memory, scratch, -1, -1);
  if (taken == layout.bytes()) return Import::kTaken;
  ++statistics.unloaded_blocks;
  return Import::kNoRoom;
}

// The checked bytes of a pinned block: in the pool, where they are one piece, else in the buffer.
// @return null: they do not match their checksum
const std::byte* PromptCache::Impl::fetch(const pool::Entry& entry) {
  const pool::Access& access = pool.access();
  memory::Domain& domain = access.domain();
  const std::uint64_t padded = pool::padded_bytes(layout.bytes());
  if (std::byte* const at = piece_of(entry.block)) {
    // R3. The lines are read into the cache by the checksum and from there by llama.cpp: as of one
    // moment after this, which is all that a pinned block needs.
    const memory::Extent extent{at, padded};
    domain.prepare_read(&extent, 1);
    return memory::hash_lines(at, padded) == entry.checksum ? at : nullptr;
  }
  memory::FusedHash hash(padded);
  std::byte* to = buffer();
  access.for_each_extent(entry.block, padded, [&](const std::byte* from, std::uint64_t bytes) {
    domain.read_bulk(to, from, bytes, &hash);
    to += bytes;
  });
  return hash.finish() == entry.checksum ? buffer() : nullptr;
}

// Where a block lies, if it is one piece of memory, else null.
std::byte* PromptCache::Impl::piece_of(std::uint32_t block) const {
  std::byte* at = nullptr;
  std::uint32_t pieces = 0;
  pool.access().for_each_extent(
      block, pool::padded_bytes(layout.bytes()),
      [&](std::byte* piece, std::uint64_t) { at = pieces++ == 0 ? piece : nullptr; });
  return at;
}

std::byte* PromptCache::Impl::buffer() {
  const std::uint64_t padded = pool::padded_bytes(layout.bytes());
  if (lines.empty()) lines.resize(padded / memory::kLineBytes);
  return reinterpret_cast<std::byte*>(lines.data());
}

// --- Damage --------------------------------------------------------------------------------------

// Once for each use of a block, however often it is met.
void PromptCache::Impl::note_damage(const pool::Entry& entry, std::size_t block) {
  if (damage && pool::same_entry(*damage, entry)) return;
  damage = entry;
  ++statistics.damaged_blocks;
  warn(Error::make(
      Code::kCorrupt,
      "block %zu of a prompt: its bytes are not those that were stored: computed again", block));
}

const pool::Entry* PromptCache::Impl::damage_at(const BlockHash& hash) const {
  const bool is_it = damage && damage->hash_low == hash.low && damage->hash_high == hash.high;
  return is_it ? &*damage : nullptr;
}

// Has the keeper drop a block that was found damaged, and all behind it. Bounded, since a block that
// looks damaged to one process may not to another (a machine whose memory is bad): each name once in a
// minute, and no more than kMostDropped names.
// @return whether the use that was damaged is gone
bool PromptCache::Impl::drop_damaged(const pool::Entry& entry) {
  constexpr std::uint64_t kMinuteNs = 60'000'000'000;
  constexpr std::size_t kMostDropped = 64;
  if (is_resting()) return false;
  const BlockHash hash{entry.hash_low, entry.hash_high};
  const std::uint64_t now_ns = base::SteadyClock::read();
  while (!dropped.empty() && now_ns - dropped.front().at_ns >= kMinuteNs) dropped.pop_front();
  const bool is_known = std::any_of(dropped.begin(), dropped.end(),
                                    [&](const Dropped& other) { return other.hash == hash; });
  if (is_known || dropped.size() == kMostDropped) return false;
  // Another process may have replaced it.
  pool::KeeperView view;
  pool::Found found;
  if (directory().lookup({&hash, 1}, client->namespace_id(), view, {&found, 1}) == 0) return true;
  if (!pool::same_entry(found.entry, entry)) return false;
  const Result<std::uint32_t> count = client->evict(hash);
  if (!count && count.error().code != Code::kNotFound) {
    give_up(count.error());
    return false;
  }
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

// @return whether the block is in the pool now
bool PromptCache::Impl::store_block(llama_seq_id seq, std::span<const BlockHash> hashes,
                                    std::size_t block) {
  constexpr int kAttempts = 3;  // a keeper that changes in between makes a reservation void
  for (int attempt = 1;; ++attempt) {
    const Result<pool::Verdict> verdict = store_once(seq, hashes, block);
    if (verdict) {
      statistics.stored_blocks += *verdict == pool::Verdict::kCommitted;
      statistics.stored_bytes += *verdict == pool::Verdict::kCommitted ? layout.bytes() : 0;
      statistics.duplicate_blocks += *verdict == pool::Verdict::kDuplicate;
      // Else it is full, or the parent was evicted.
      return *verdict == pool::Verdict::kCommitted || *verdict == pool::Verdict::kDuplicate;
    }
    if (verdict.error().code == Code::kStale && attempt < kAttempts) continue;
    give_up(verdict.error());
    return false;
  }
}

Result<pool::Verdict> PromptCache::Impl::store_once(llama_seq_id seq,
                                                    std::span<const BlockHash> hashes,
                                                    std::size_t block) {
  CACHALOT_TRY_ASSIGN(pool::Reservation reserved, client->reserve(1));
  CACHALOT_TRY_ASSIGN(pool::OpenReservation open, std::move(reserved).begin());
  const std::optional<std::uint64_t> checksum = export_to(open.uses()[0].block, seq, block);
  pool::WrittenReservation reservation = std::move(open).end();
  if (!checksum) {
    return Error::make(Code::kUnsupported,
                       "block %zu of a prompt: its cells are not in the order of their positions",
                       block);
  }
  const pool::WrittenBlock written{hashes[block], static_cast<std::uint32_t>(layout.bytes()),
                                   checksum};
  const BlockHash* const parent = block == 0 ? nullptr : &hashes[block - 1];
  pool::Verdict verdict{};
  CACHALOT_TRY(client->commit(parent, std::move(reservation), {&written, 1}, {&verdict, 1}));
  rest_ns = 0;
  return verdict;
}

// A full pool, or a fragmented context, is no trouble of the keeper's.
void PromptCache::Impl::give_up(const Error& error) {
  const bool is_keepers =
      error.code == Code::kNoKeeper || error.code == Code::kTimeout || error.code == Code::kBusy;
  if (is_keepers) return rest(error);
  ++statistics.pool_failures;
  warn(error);
}

// Writes one block of `seq` into a pool block that this client holds. @return its checksum; none: the
// sequence does not hold these tokens in the order of their positions
std::optional<std::uint64_t> PromptCache::Impl::export_to(std::uint32_t to, llama_seq_id seq,
                                                          std::size_t block) {
  memory::Domain& domain = pool.access().domain();
  const std::uint64_t padded = pool::padded_bytes(layout.bytes());
  // llama.cpp stores by plain instructions. In a coherent pool those are as good as any, and what is
  // left in a cache belongs to all. In a noncoherent one they leave lines in this machine's caches that
  // are written back whenever it pleases: if this process dies before it has flushed them, later than
  // the block's next owner writes (R2). So there the block goes by way of a buffer, which costs a copy
  // out of a near cache, and into the pool in whole lines past the caches.
  std::byte* const place = domain.kind() == memory::DomainKind::kCoherent ? piece_of(to) : nullptr;
  std::byte* const blob = place != nullptr ? place : buffer();
  llama_memory_seq_cp(memory, seq, scratch, position_of(block), position_of(block + 1));
  const std::size_t bytes = llama_state_seq_get_data_ext(
      context, reinterpret_cast<std::uint8_t*>(blob), layout.bytes(), scratch, 0);
  llama_memory_seq_rm(memory, scratch, -1, -1);
  if (bytes != layout.bytes() || !layout.holds(blob, position_of(block))) return {};
  std::memset(blob + bytes, 0, padded - bytes);
  base::reach(base::FailPoint::kWriteBulk);
  if (place != nullptr) return memory::hash_lines(blob, padded);  // commit() orders the stores (R4)
  memory::FusedHash hash(padded);
  const std::byte* from = blob;
  pool.access().for_each_extent(to, padded, [&](std::byte* piece, std::uint64_t length) {
    pool::copy_in_pieces(length, base::FailPoint::kWriteBulk,
                         [&](std::uint64_t at, std::uint64_t part) {
                           domain.write_bulk(piece + at, from + at, part, &hash);
                         });
    from += length;
  });
  return hash.finish();
}

}  // namespace cachalot::llama
