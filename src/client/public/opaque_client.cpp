#include <cachalot/opaque_client.h>

#include <algorithm>
#include <cinttypes>
#include <cstring>
#include <mutex>

#include "base/fail_point.h"
#include "block_hash/block_hasher.h"
#include "client/chain_store.h"
#include "client/fork_guard.h"
#include "client/prefetch.h"
#include "kv/cpu/run_batch.h"
#include "memory/line.h"
#include "pool/client/client.h"
#include "pool/flights.h"

namespace cachalot {
namespace {

using client::Counters;
using client::PoolBlock;

// Blocks in the memory that a call names.
class LoadedBytes final : public client::BlockTarget {
 public:
  LoadedBytes(memory::Domain& domain, std::span<std::byte* const> to, std::uint64_t bytes)
      : domain_(domain), to_(to), bytes_(bytes) {}

  Status scatter(std::size_t first, std::span<const PoolBlock> blocks) override {
    kv::ScatterBatch batch(domain_, kv::Preparation::kByBatch);
    for (std::size_t i = 0; i < blocks.size(); ++i) {
      batch.begin_block(blocks[i].extents, blocks[i].hash);
      batch.add(0, to_[first + i], bytes_);
    }
    batch.flush();
    return {};
  }

 private:
  memory::Domain& domain_;
  const std::span<std::byte* const> to_;
  const std::uint64_t bytes_;
};

class StoredBytes final : public client::BlockSource {
 public:
  StoredBytes(memory::Domain& domain, std::span<const std::byte* const> from, std::uint64_t bytes)
      : domain_(domain), from_(from), bytes_(bytes) {}

  Status gather(std::size_t first, std::span<const PoolBlock> blocks) override {
    kv::GatherBatch batch(domain_);
    for (std::size_t i = 0; i < blocks.size(); ++i) {
      batch.begin_block(blocks[i].extents, blocks[i].hash);
      batch.add(0, from_[first + i], bytes_);
      batch.end_block();
    }
    batch.flush();
    return {};
  }

 private:
  memory::Domain& domain_;
  const std::span<const std::byte* const> from_;
  const std::uint64_t bytes_;
};

// A buffer of one block, kept from call to call.
class SpareBuffer {
 public:
  class Loan {
   public:
    explicit Loan(SpareBuffer& owner) : owner_(owner) {
      const std::lock_guard lock(owner_.mutex_);
      lines_.swap(owner_.lines_);
    }
    Loan(const Loan&) = delete;
    Loan& operator=(const Loan&) = delete;
    ~Loan() {
      const std::lock_guard lock(owner_.mutex_);
      if (lines_.size() > owner_.lines_.size()) lines_.swap(owner_.lines_);
    }
    // @cost the first call allocates it
    std::byte* bytes(std::uint64_t padded) {
      if (lines_.empty()) lines_.resize(padded / memory::kLineBytes);
      return reinterpret_cast<std::byte*>(lines_.data());
    }

   private:
    SpareBuffer& owner_;
    std::vector<memory::Line> lines_;
  };

 private:
  std::mutex mutex_;
  std::vector<memory::Line> lines_;
};

// Blocks that a callback fills.
class ExportedBytes final : public client::BlockSource {
 public:
  ExportedBytes(memory::Domain& domain, SpareBuffer& spare, std::uint64_t bytes,
                const OpaqueClient::Exporter& exporter)
      : domain_(domain), buffer_(spare), bytes_(bytes), exporter_(exporter) {}

  Status gather(std::size_t first, std::span<const PoolBlock> blocks) override {
    for (std::size_t i = 0; i < blocks.size(); ++i) {
      CACHALOT_TRY(fill(first + i, blocks[i]));
    }
    return {};
  }

 private:
  // The exporter stores by plain instructions. In a coherent pool those are as good as any, and what is left
  // in a cache belongs to all. In a noncoherent one they leave lines in this machine's caches that are
  // written back at any time: if this process dies before it has flushed them, later than the block's next
  // owner writes (R2). There the block goes through a buffer, which costs a copy out of a near cache, and
  // into the pool in whole lines past the caches.
  Status fill(std::size_t i, const PoolBlock& block) {
    const std::uint64_t padded = pool::padded_bytes(bytes_);
    const bool in_place =
        domain_.kind() == memory::DomainKind::kCoherent && block.extents.size() == 1;
    std::byte* const room = in_place ? block.extents[0].at : buffer_.bytes(padded);
    CACHALOT_TRY(exporter_(i, {room, bytes_}));
    std::memset(room + bytes_, 0, padded - bytes_);
    base::reach(base::FailPoint::kWriteBulk);
    if (in_place) {  // the commit orders the stores (R4)
      if (block.hash != nullptr) block.hash->update(room, padded);
      return {};
    }
    const std::byte* from = room;
    for (const memory::Extent& extent : block.extents) {
      pool::copy_in_pieces(extent.bytes, base::FailPoint::kWriteBulk,
                           [&](std::uint64_t at, std::uint64_t piece) {
                             domain_.write_bulk(extent.at + at, from + at, piece, block.hash);
                           });
      from += extent.bytes;
    }
    return {};
  }

  memory::Domain& domain_;
  SpareBuffer::Loan buffer_;
  const std::uint64_t bytes_;
  const OpaqueClient::Exporter& exporter_;
};

}  // namespace

struct OpaqueClient::Impl {
  Impl(const OpaqueOptions& given, std::shared_ptr<client::Session> opened)
      : options(given),
        space(block_hash::make_namespace(given.fingerprint)),
        session(std::move(opened)) {}

  Counters& counters() { return session->counters(); }
  memory::Domain& domain() { return session->access().domain(); }
  client::BlockCall call(std::span<const BlockHash> hashes, std::uint64_t timeout_ns) {
    return {*session, counters(), hashes, options.block_bytes, client::Deadline::after(timeout_ns)};
  }
  // @errors kInvalidArgument
  Status check_counts(std::size_t addresses, std::size_t blocks) const;
  const std::byte* fetch(const pool::ValidatedRead& read, std::size_t i, SpareBuffer::Loan& buffer);

  const OpaqueOptions options;
  const block_hash::NamespaceId space;
  const std::uint64_t forks = client::fork_generation();
  std::shared_ptr<client::Session> session;
  SpareBuffer spare;
};

Status OpaqueClient::Impl::check_counts(std::size_t addresses, std::size_t blocks) const {
  if (addresses == blocks) return {};
  return Error::make(Code::kInvalidArgument, "addresses: %zu were given for %zu blocks", addresses,
                     blocks);
}

// --- Attach --------------------------------------------------------------------------------------

OpaqueClient::OpaqueClient(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
OpaqueClient::OpaqueClient(OpaqueClient&&) noexcept = default;
OpaqueClient& OpaqueClient::operator=(OpaqueClient&& from) noexcept {
  OpaqueClient taken(std::move(from));
  std::swap(impl_, taken.impl_);  // `taken` detaches the previous client
  return *this;
}

OpaqueClient::~OpaqueClient() {
  if (impl_ == nullptr) return;
  // A forked child has neither the threads nor the mapping: both belong to the parent.
  if (client::fork_generation() != impl_->forks) {
    (void)impl_.release();
  } else if (impl_->session->check_usable()) {
    (void)detach();
  }
}

Result<OpaqueClient> OpaqueClient::attach(const OpaqueOptions& options) {
  if (options.fingerprint.empty()) {
    return Error::make(Code::kInvalidArgument,
                       "fingerprint: is empty; name all that the bytes of a block depend on");
  }
  if (options.grant_blocks < 1 || options.grant_blocks > kMostGrantBlocks) {
    return Error::make(Code::kInvalidArgument, "grant_blocks: %u is not within 1 to %u",
                       options.grant_blocks, kMostGrantBlocks);
  }
  if (options.block_bytes == 0) {
    return Error::make(Code::kInvalidArgument, "block_bytes: is 0, expected at least 1");
  }
  ClientOptions attach;
  attach.pool = options.pool;
  attach.host = options.host;
  attach.slot = options.slot;
  attach.grant_blocks = options.grant_blocks;
  attach.checksums = options.checksums;
  attach.pinned_reads = options.pinned_reads;
  attach.allow_foreign_pool = options.allow_foreign_pool;
  attach.counts_prompts = options.counts_prompts;
  attach.keeper_timeout_ns = options.keeper_timeout_ns;
  attach.recovery_ns = options.recovery_ns;
  const auto fits = [&](const pool::Geometry& pool) -> Status {
    const std::uint64_t most = std::min<std::uint64_t>(pool.block_bytes, 0xffffffffu);
    if (options.block_bytes <= most) return {};
    return Error::make(Code::kInvalidArgument,
                       "block_bytes: %" PRIu64 "; the blocks of the pool %.300s have %" PRIu64
                       ": create a pool with --block-bytes %" PRIu64,
                       options.block_bytes, options.pool[0].c_str(), most,
                       pool::padded_bytes(options.block_bytes));
  };
  CACHALOT_TRY_ASSIGN(std::shared_ptr<client::Session> session,
                      client::Session::open(
                          attach, options.fingerprint, options.fingerprint,
                          [](int ordinal) { return kv::CudaDevice::open(ordinal); }, fits));
  return OpaqueClient(std::make_unique<Impl>(options, std::move(session)));
}

Status OpaqueClient::detach() {
  if (impl_ == nullptr) return Error::make(Code::kInvalidArgument, "client: it was moved from");
  if (client::fork_generation() != impl_->forks) return impl_->session->check_usable();
  return impl_->session->close();
}

std::vector<BlockHash> OpaqueClient::hash_tokens(std::span<const std::uint32_t> tokens) const {
  const std::uint32_t block_tokens = impl_->options.block_tokens;
  if (block_tokens == 0) return {};
  std::vector<BlockHash> hashes(tokens.size() / block_tokens);
  block_hash::BlockHasher hasher = block_hash::BlockHasher::xxh3(impl_->space);
  hasher.hash_blocks(hasher.root(), tokens, block_tokens, hashes);
  return hashes;
}

// --- Load and store ------------------------------------------------------------------------------

Result<std::size_t> OpaqueClient::lookup(std::span<const BlockHash> hashes) const {
  CACHALOT_TRY(impl_->session->check_usable());
  impl_->session->prompts().ask(hashes);
  return client::look_up(*impl_->session, &impl_->counters(), hashes, impl_->options.block_bytes)
      .found()
      .size();
}

Result<Prefetched> OpaqueClient::prefetch(std::span<const BlockHash> hashes, std::uint64_t wait_ns,
                                          std::size_t least_blocks) {
  return client::prefetch(*impl_->session, hashes, wait_ns, least_blocks);
}

Result<bool> OpaqueClient::is_fetching(std::span<const BlockHash> stored) {
  return client::is_fetching(*impl_->session, stored);
}

Result<bool> OpaqueClient::has_storage() {
  CACHALOT_TRY_ASSIGN(const pool::StorageAnswer answer, impl_->session->ask_storage({}, 0));
  return answer.is_up != 0;
}

Result<std::uint64_t> OpaqueClient::storage_backlog() {
  CACHALOT_TRY_ASSIGN(const pool::StorageAnswer answer, impl_->session->ask_storage({}, 0));
  return answer.queued;
}

Result<std::size_t> OpaqueClient::load(std::span<const BlockHash> hashes,
                                       std::span<std::byte* const> to,
                                       const OpaqueLoadOptions& options) {
  CACHALOT_TRY(impl_->session->check_usable());
  CACHALOT_TRY(impl_->check_counts(to.size(), hashes.size()));
  LoadedBytes target(impl_->domain(), to, impl_->options.block_bytes);
  client::BlockCall call = impl_->call(hashes, options.timeout_ns);
  call.goes_on = options.goes_on;
  return impl_->session->prompts().load(hashes, [&] { return client::load_blocks(call, target); });
}

Result<Stored> OpaqueClient::store(const BlockHash* parent, std::span<const BlockHash> hashes,
                                   std::span<const std::byte* const> from,
                                   std::uint64_t timeout_ns) {
  CACHALOT_TRY(impl_->session->check_usable());
  CACHALOT_TRY(impl_->check_counts(from.size(), hashes.size()));
  StoredBytes source(impl_->domain(), from, impl_->options.block_bytes);
  impl_->session->prompts().store(hashes);
  return client::store_blocks(impl_->call(hashes, timeout_ns), parent, source);
}

// --- In place ------------------------------------------------------------------------------------

Result<OpaqueClient::Imported> OpaqueClient::load_in_place(std::span<const BlockHash> hashes,
                                                           const Importer& importer) {
  client::Session& session = *impl_->session;
  Counters& counters = impl_->counters();
  CACHALOT_TRY(session.check_usable());
  const client::PromptCounts::Load counted = session.prompts().begin_load(hashes);
  Imported imported;
  // Most prompts end in new blocks: this look needs neither pin nor keeper.
  std::vector<pool::Found> room(hashes.size());
  if (hashes.empty()) return imported;
  if (session.begin_read(hashes.first(1), room).found().empty()) {
    session.damaged().forget(hashes[0]);
    return imported;
  }
  CACHALOT_TRY_ASSIGN(const client::ReadPin pin, client::ReadPin::take(session));
  pool::ValidatedRead read = session.begin_read(hashes, room);
  Counters::add(counters.lookups, 1);
  Counters::add(counters.looked_up_blocks, hashes.size());
  Counters::add(counters.hit_blocks, read.found().size());
  SpareBuffer::Loan buffer(impl_->spare);
  std::size_t taken = 0;
  Import last = Import::kTaken;
  while (taken < read.found().size()) {
    const std::byte* const bytes = impl_->fetch(read, taken, buffer);
    base::reach(base::FailPoint::kReadCopied);
    last =
        bytes == nullptr ? Import::kDamaged : importer(taken, {bytes, impl_->options.block_bytes});
    if (last != Import::kTaken) break;
    ++taken;
  }
  if (last == Import::kDamaged) read.reject(taken);
  read.shorten(taken);
  // Pinned blocks stay as they are, unless an operator fenced this process meanwhile: then not all of it can
  // be believed, nor that a block is damaged.
  const auto [valid, stale, is_damaged] = read.validate();
  imported = {valid, taken - valid, is_damaged};
  session.prompts().end_load(counted, valid);
  if (is_damaged) {
    session.note_damage(room[taken].entry);
  } else if (taken < hashes.size()) {
    session.damaged().forget(hashes[taken]);
  }
  if (valid != 0) session.report_hits({&room[valid - 1], 1});
  Counters::add(counters.stale_blocks, stale);
  Counters::add(counters.loads, 1);
  Counters::add(counters.loaded_blocks, valid);
  Counters::add(counters.loaded_bytes, valid * impl_->options.block_bytes);
  return imported;
}

// The checked bytes of a pinned block: in the pool, where they are one piece, else in the buffer.
// @return null: another size, no checksum where they are verified, or not the bytes of its checksum
const std::byte* OpaqueClient::Impl::fetch(const pool::ValidatedRead& read, std::size_t i,
                                           SpareBuffer::Loan& buffer) {
  const pool::Entry& entry = read.found()[i].entry;
  const bool verifies = session->verifies_checksums();
  if (entry.length != options.block_bytes || (verifies && !read.has_checksum(i))) return nullptr;
  const std::uint64_t padded = pool::padded_bytes(options.block_bytes);
  client::Extents extents;
  extents.add(session->access(), entry.block, options.block_bytes);
  const std::span<const memory::Extent> pieces = extents.of(0);
  if (pieces.size() == 1) {
    // R3. The lines are read into the cache by the checksum and from there by the caller: as of one moment
    // after this, which is all that a pinned block needs.
    domain().prepare_read(pieces.data(), 1);
    const bool is_right = !verifies || memory::hash_lines(pieces[0].at, padded) == entry.checksum;
    return is_right ? pieces[0].at : nullptr;
  }
  memory::FusedHash hash(padded);
  std::byte* const bytes = buffer.bytes(padded);
  std::byte* to = bytes;
  for (const memory::Extent& piece : pieces) {
    domain().read_bulk(to, piece.at, piece.bytes, verifies ? &hash : nullptr);
    to += piece.bytes;
  }
  return !verifies || hash.finish() == entry.checksum ? bytes : nullptr;
}

Result<Stored> OpaqueClient::store_in_place(const BlockHash* parent,
                                            std::span<const BlockHash> hashes,
                                            const Exporter& exporter) {
  CACHALOT_TRY(impl_->session->check_usable());
  ExportedBytes source(impl_->domain(), impl_->spare, impl_->options.block_bytes, exporter);
  impl_->session->prompts().store(hashes);
  return client::store_blocks(impl_->call(hashes, kNoTimeout), parent, source);
}

// --- Care ----------------------------------------------------------------------------------------

Result<bool> OpaqueClient::drop_damaged(const BlockHash& hash) {
  CACHALOT_TRY(impl_->session->check_usable());
  return impl_->session->drop_damaged(hash);
}

bool OpaqueClient::is_damaged(const BlockHash& hash) const {
  return impl_->session->damaged().find(hash).has_value();
}

bool OpaqueClient::is_attached() const {
  return impl_->session->check_usable() && impl_->session->is_attached();
}

Status OpaqueClient::check_pool() const {
  CACHALOT_TRY(impl_->session->check_usable());
  return impl_->session->pool().check_still_there();
}

struct OpaqueClient::Claims::Impl {
  std::shared_ptr<client::Session> session;  // keeps the pool's file open
  pool::Flights flights;
};

OpaqueClient::Claims::Claims(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
OpaqueClient::Claims::Claims(Claims&&) noexcept = default;
OpaqueClient::Claims& OpaqueClient::Claims::operator=(Claims&&) noexcept = default;
OpaqueClient::Claims::~Claims() = default;

std::size_t OpaqueClient::Claims::claim(std::span<const BlockHash> hashes) {
  return impl_->flights.claim(hashes);
}
void OpaqueClient::Claims::release(std::size_t claims) {
  impl_->flights.release(claims);
}
std::size_t OpaqueClient::Claims::count() const {
  return impl_->flights.claims();
}

Result<OpaqueClient::Claims> OpaqueClient::open_claims() const {
  CACHALOT_TRY(impl_->session->check_usable());
  CACHALOT_TRY_ASSIGN(pool::Flights flights, pool::Flights::open(impl_->session->pool()));
  return Claims(std::make_unique<Claims::Impl>(Claims::Impl{impl_->session, std::move(flights)}));
}

Status OpaqueClient::count_prompt(const PromptBlocks& prompt) {
  CACHALOT_TRY(impl_->session->check_usable());
  return impl_->session->prompts().count(prompt);
}

Statistics OpaqueClient::statistics() const {
  Statistics now = impl_->session->counters().read();
  now.reattachments = impl_->session->reattachments();
  return now;
}

}  // namespace cachalot
