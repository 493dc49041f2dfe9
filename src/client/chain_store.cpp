#include "client/chain_store.h"

#include <algorithm>

#include "base/fail_point.h"
#include "base/log.h"
#include "pool/format/notes.h"

namespace cachalot::client {
namespace {

constexpr int kAttempts = 4;

// Fewer in a small pool, where one chain would take the room of the others.
std::size_t blocks_at_once(std::span<const StoredChain> chains) {
  const std::uint64_t capacity = chains[0].call.session.access().geometry.capacity_blocks;
  return std::clamp<std::size_t>(capacity / (4 * chains.size()), 1, kBlocksAtOnce);
}

}  // namespace

std::optional<Code> reason_of(pool::Verdict verdict) {
  switch (verdict) {
    case pool::Verdict::kCommitted:
    case pool::Verdict::kDuplicate:
      return {};
    case pool::Verdict::kNoRoom:
      return Code::kNoSpace;
    case pool::Verdict::kNoParent:
      return Code::kRefused;
    case pool::Verdict::kNotHeld:
      return Code::kStale;
    case pool::Verdict::kBadItem:
      break;
  }
  return Code::kInternal;
}

bool ChainProgress::take(std::span<const pool::Verdict> verdicts) {
  for (const pool::Verdict verdict : verdicts) {
    reason = reason_of(verdict);
    if (reason) return false;
    is_written[blocks++] = verdict == pool::Verdict::kCommitted;
  }
  return true;
}

std::size_t ChainProgress::written() const {
  const auto end = is_written.begin() + static_cast<std::ptrdiff_t>(blocks);
  return static_cast<std::size_t>(std::count(is_written.begin(), end, true));
}

Stored stored_of(std::span<const ChainProgress> chains) {
  Stored stored{chains[0].is_written.size(), 0, {}};
  for (const ChainProgress& chain : chains) {
    stored.blocks = std::min(stored.blocks, chain.blocks);
    if (!stored.reason && chain.blocks < chain.is_written.size()) stored.reason = chain.reason;
  }
  for (std::size_t i = 0; i < stored.blocks; ++i) {
    stored.written += std::any_of(chains.begin(), chains.end(),
                                  [&](const ChainProgress& chain) { return chain.is_written[i]; });
  }
  return stored;
}

void make_way(Session& session, std::span<const BlockHash> hashes, const Deadline& deadline) {
  while (const std::optional<BlockHash> hash = session.damaged().first_of(hashes)) {
    if (!session.drop_damaged(*hash, deadline)) return;  // the store that follows says why
    session.damaged().forget(*hash);
  }
}

namespace {

// Keeps the tokens of blocks [first, first + uses.size()) in the pool, if it has room for them. The commit's
// order() covers the notes as it does the payload (R4).
void write_notes(const BlockCall& call, std::size_t first, std::span<const pool::BlockUse> uses) {
  const pool::Access& access = call.session.access();
  if (call.tokens.empty() || access.geometry.note_bytes == 0) return;
  const std::size_t each = call.tokens.size() / call.hashes.size();
  const std::uint32_t most = pool::most_note_tokens(access.geometry);
  if (each > most) {
    if (call.session.is_first_loss_of_tokens()) {
      base::log(base::LogLevel::kWarn, "client",
                "the %zu tokens of a block are not kept: a note of the pool has room for %u "
                "(cachalot pool create --note-bytes)",
                each, most);
    }
    return;
  }
  for (std::size_t i = 0; i < uses.size(); ++i) {
    pool::write_note(access, uses[i], call.hashes[first + i],
                     call.tokens.subspan((first + i) * each, each));
  }
}

// Copies and commits blocks [first, first + count), or fewer if the pool grants fewer.
// @param is_copied  set to false if an error comes from the copy, not from the pool
Status store_batch(const BlockCall& call, BlockSource& source, const BlockHash* parent,
                   std::size_t first, std::size_t& count, std::span<pool::Verdict> verdicts,
                   bool& is_copied) {
  CACHALOT_TRY_ASSIGN(pool::OpenReservation reservation,
                      call.session.begin_write(static_cast<std::uint32_t>(count), call.deadline));
  count = reservation.uses().size();
  // begin_write() may have waited for a keeper
  if (const Status wanted = call.check_time("store"); !wanted) {
    std::move(reservation).end();
    return wanted;
  }
  Extents extents;
  for (const pool::BlockUse& use : reservation.uses())
    extents.add(call.session.access(), use.block, call.block_bytes);
  std::vector<memory::FusedHash> hashes(call.session.writes_checksums() ? count : 0,
                                        memory::FusedHash(pool::padded_bytes(call.block_bytes)));
  std::vector<PoolBlock> blocks;
  for (std::size_t i = 0; i < count; ++i) {
    blocks.push_back({extents.of(i), hashes.empty() ? nullptr : &hashes[i]});
  }
  if (const Status copied = source.gather(first, blocks); !copied) {
    is_copied = false;
    if (source.may_still_copy(copied.error())) {
      std::move(reservation).withhold();
    } else {
      std::move(reservation).end();
    }
    return copied;
  }
  write_notes(call, first, reservation.uses());
  Counters::add(call.counters.copied_bytes, count * call.block_bytes);
  std::vector<pool::WrittenBlock> written;
  for (std::size_t i = 0; i < count; ++i) {
    pool::WrittenBlock block{
        call.hashes[first + i], static_cast<std::uint32_t>(call.block_bytes), {}};
    if (!hashes.empty()) block.checksum = hashes[i].finish();
    written.push_back(block);
  }
  const bool goes_on = first + count < call.hashes.size();
  return call.session.commit(parent, std::move(reservation).end(), written, verdicts, call.deadline,
                             goes_on);
}

// Reports the present part of the chain as used, or else the parent. Otherwise the pool might evict the chain's
// beginning to make space for its end.
void touch_beginning(const BlockCall& call, const BlockHash* parent, const Hit& present) {
  if (!present.found().empty()) return call.session.report_beginning(present.found().back());
  pool::KeeperView view;
  pool::Found found;
  if (parent == nullptr || call.session.lookup({parent, 1}, view, {&found, 1}) == 0) return;
  call.session.report_beginning(found);
}

// @threads one
class ChainStore {
 public:
  // @param progress  outlives it
  ChainStore(const StoredChain& chain, std::size_t most_at_once, ChainProgress& progress)
      : chain_(chain), call_(chain.call), most_at_once_(most_at_once), progress_(progress) {
    make_way(call_.session, call_.hashes, call_.deadline);
    look_again();
  }

  std::size_t blocks() const { return progress_.blocks; }
  bool has_ended() const { return is_over_ || progress_.blocks == call_.hashes.size(); }
  // It cannot go on, although blocks are missing.
  bool has_stopped() const { return is_over_; }
  // Why it ended before all blocks were in the pool, unless the pool is full or refused them.
  Status outcome() const { return has_no_space_ ? Status() : outcome_; }

  // Stores the next batch. Precondition: !has_ended()
  void step();

 private:
  void look_again() {
    Hit present = look_up(call_.session, nullptr, call_.hashes, call_.block_bytes);
    progress_.blocks = present.blocks();
    if (!has_ended()) touch_beginning(call_, chain_.parent, present);
  }

  const StoredChain& chain_;
  const BlockCall& call_;
  const std::size_t most_at_once_;
  ChainProgress& progress_;
  Status outcome_;
  int attempt_ = 1;
  bool is_over_ = false, has_no_space_ = false;
};

void ChainStore::step() {
  if (outcome_ = call_.check_time("store"); !outcome_) {
    is_over_ = true;
    return;
  }
  const std::size_t first = progress_.blocks;
  std::size_t count = std::min(call_.hashes.size() - first, most_at_once_);
  const BlockHash* const before = first == 0 ? chain_.parent : &call_.hashes[first - 1];
  pool::Verdict verdicts[kBlocksAtOnce];
  std::fill_n(verdicts, count, pool::Verdict::kNotHeld);
  bool is_copied = true;
  outcome_ = store_batch(call_, chain_.source, before, first, count, verdicts, is_copied);
  const bool is_taken = progress_.take({verdicts, count});
  const Code error = outcome_ ? Code{} : outcome_.error().code;
  has_no_space_ = !outcome_ && error == Code::kNoSpace && is_copied;
  if (has_no_space_) progress_.reason = Code::kNoSpace;
  if (!outcome_ && error == Code::kStale && is_copied && attempt_++ < kAttempts) return;
  if (outcome_ && progress_.reason == Code::kRefused && progress_.blocks != 0) {
    // The chain's beginning was evicted: look up again and continue after the last block in the pool.
    progress_.reason = Code::kNoSpace;
    look_again();
    if (attempt_++ < kAttempts) return;
  }
  is_over_ = !outcome_ || !is_taken;
}

}  // namespace

Result<Stored> store_chains(std::span<const StoredChain> chains) {
  const std::size_t wanted = chains[0].call.hashes.size();
  std::vector<ChainProgress> progress(chains.size(), ChainProgress(wanted));
  std::vector<ChainStore> stores;
  for (std::size_t i = 0; i < chains.size(); ++i)
    stores.emplace_back(chains[i], blocks_at_once(chains), progress[i]);
  const auto find_behind = [&] {
    return std::min_element(
        stores.begin(), stores.end(),
        [](const ChainStore& a, const ChainStore& b) { return a.blocks() < b.blocks(); });
  };
  auto behind = find_behind();
  while (!behind->has_ended()) {
    behind->step();
    // Without this chain more of the others would be of no use, and might evict it.
    if (behind->has_stopped()) break;
    behind = find_behind();
  }
  Counters& counters = chains[0].call.counters;
  Counters::add(counters.stores, 1);
  for (std::size_t i = 0; i < chains.size(); ++i) {
    const std::size_t written = progress[i].written();
    Counters::add(counters.stored_blocks, written);
    Counters::add(counters.stored_bytes, written * chains[i].call.block_bytes);
    Counters::add(counters.duplicate_blocks, progress[i].blocks - written);
  }
  const Stored stored = stored_of(progress);
  if (const Status outcome = behind->outcome(); !outcome)
    return ended_early(outcome.error(), stored.blocks, wanted, "are in the pool");
  return stored;
}

}  // namespace cachalot::client
