#include "client/block_copies.h"

#include <algorithm>

#include "base/fail_point.h"
#include "base/log.h"
#include "pool/format/notes.h"

namespace cachalot::client {
namespace {

// Few enough to check the deadline often, enough to share among several threads.
constexpr std::size_t kBlocksAtOnce = 16;
constexpr int kAttempts = 4;

}  // namespace

Status BlockCall::check_time(const char* what) const {
  if (cancelled != nullptr && cancelled->load(std::memory_order_relaxed)) {
    return Error::make(Code::kCancelled, "%s: was cancelled", what);
  }
  return deadline.check(what);
}

void Extents::add(const pool::Access& access, std::uint32_t block, std::uint64_t bytes) {
  access.for_each_extent(block, pool::padded_bytes(bytes),
                         [&](std::byte* at, std::uint64_t length) {
                           extents_.push_back({at, length});
                         });
  starts_.push_back(extents_.size());
}

Hit look_up(Session& session, Counters* counters, std::span<const BlockHash> hashes,
            std::uint64_t block_bytes) {
  std::vector<pool::Found> room(hashes.size());
  pool::ValidatedRead read = session.begin_read(hashes, room);
  const auto other =
      std::find_if(read.found().begin(), read.found().end(),
                   [&](const pool::Found& found) { return found.entry.length != block_bytes; });
  read.shorten(static_cast<std::size_t>(other - read.found().begin()));
  Hit hit{std::move(room), std::move(read)};
  if (counters == nullptr) return hit;
  Counters::add(counters->lookups, 1);
  Counters::add(counters->looked_up_blocks, hashes.size());
  Counters::add(counters->hit_blocks, hit.found().size());
  return hit;
}

namespace {

// The error of a call that timed out or was cancelled; its detail is the number of finished blocks.
// @param did  "are loaded"
Error ended_early(const Error& error, std::size_t blocks, std::size_t of, const char* did) {
  if (error.code != Code::kTimeout && error.code != Code::kCancelled) return error;
  Error told = Error::make(error.code, "%.150s; the first %zu of %zu blocks %s", error.message,
                           blocks, of, did);
  told.detail = blocks;
  return told;
}

// Copies blocks [first, last) of a hit. The hit ends at the first damaged one.
Status load_batch(const BlockCall& call, BlockTarget& target, Hit& hit, std::size_t first,
                  std::size_t last) {
  Extents extents;
  std::vector<memory::FusedHash> hashes;
  hashes.reserve(last - first);
  std::vector<PoolBlock> blocks;
  for (std::size_t i = first; i < last; ++i) {
    extents.add(call.session.access(), hit.found()[i].entry.block, call.block_bytes);
  }
  for (std::size_t i = first; i < last; ++i) {
    PoolBlock block{extents.of(i - first)};
    if (target.is_whole() && hit.read.has_checksum(i)) {
      block.hash = &hashes.emplace_back(pool::padded_bytes(call.block_bytes));
    }
    blocks.push_back(block);
  }
  CACHALOT_TRY(target.scatter(first, blocks));
  if (target.is_whole()) {
    Counters::add(call.counters.copied_bytes, blocks.size() * call.block_bytes);
  }
  for (std::size_t i = 0; i < blocks.size(); ++i) {
    if (blocks[i].hash == nullptr) continue;
    if (!hit.read.check_bytes(first + i, blocks[i].hash->finish())) break;
  }
  return {};
}

}  // namespace

Result<std::size_t> load_blocks(const BlockCall& call, BlockTarget& target) {
  Hit hit = look_up(call.session, &call.counters, call.hashes, call.block_bytes);
  Status in_time;
  for (std::size_t copied = 0; copied < hit.found().size();) {
    if (in_time = call.check_time("load"); !in_time) {
      hit.read.shorten(copied);
      break;
    }
    const std::size_t last = std::min(copied + kBlocksAtOnce, hit.found().size());
    CACHALOT_TRY(load_batch(call, target, hit, copied, last));
    copied = last;
    base::reach(base::FailPoint::kReadCopied);
  }
  const auto [valid, stale, is_damaged] = hit.read.validate();
  Counters::add(call.counters.stale_blocks, stale);
  if (is_damaged) call.session.note_damage(hit.room[valid].entry);
  const bool is_reported_later = call.goes_on && valid == call.hashes.size();
  if (valid != 0 && !is_reported_later) call.session.report_hit(hit.found().back());
  Counters::add(call.counters.loads, 1);
  Counters::add(call.counters.loaded_blocks, valid);
  Counters::add(call.counters.loaded_bytes, valid * call.block_bytes);
  if (!in_time) return ended_early(in_time.error(), valid, call.hashes.size(), "are loaded");
  return valid;
}

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

}  // namespace

std::size_t take_verdicts(std::span<const pool::Verdict> verdicts, Stored& stored) {
  for (std::size_t i = 0; i < verdicts.size(); ++i) {
    stored.reason = reason_of(verdicts[i]);
    if (stored.reason) return i;
    ++stored.blocks;
    stored.written += verdicts[i] == pool::Verdict::kCommitted;
  }
  return verdicts.size();
}

namespace {

// Reports the present part of the chain as used, or else the parent. Otherwise the pool might evict the chain's
// beginning to make space for its end.
void touch_beginning(const BlockCall& call, const BlockHash* parent, const Hit& present) {
  if (!present.found().empty()) return call.session.report_beginning(present.found().back());
  pool::KeeperView view;
  pool::Found found;
  if (parent == nullptr || call.session.lookup({parent, 1}, view, {&found, 1}) == 0) return;
  call.session.report_beginning(found);
}

}  // namespace

void make_way(Session& session, std::span<const BlockHash> hashes, const Deadline& deadline) {
  while (const std::optional<BlockHash> hash = session.damaged().first_of(hashes)) {
    if (!session.drop_damaged(*hash, deadline)) return;  // the store that follows says why
    session.damaged().forget(*hash);
  }
}

Result<Stored> store_blocks(const BlockCall& call, const BlockHash* parent, BlockSource& source) {
  const std::size_t wanted = call.hashes.size();
  Stored stored;
  std::vector<bool> is_written(wanted);
  const auto look_again = [&] {
    Hit present = look_up(call.session, nullptr, call.hashes, call.block_bytes);
    stored.blocks = present.found().size();
    if (stored.blocks < wanted) touch_beginning(call, parent, present);
  };
  make_way(call.session, call.hashes, call.deadline);
  look_again();
  Status outcome;
  bool is_full = false;
  for (int attempt = 1; stored.blocks < wanted;) {
    if (outcome = call.check_time("store"); !outcome) break;
    std::size_t count = std::min(wanted - stored.blocks, kBlocksAtOnce);
    const std::size_t first = stored.blocks;
    const BlockHash* const before = first == 0 ? parent : &call.hashes[first - 1];
    pool::Verdict verdicts[kBlocksAtOnce];
    std::fill_n(verdicts, count, pool::Verdict::kNotHeld);
    bool is_copied = true;
    outcome = store_batch(call, source, before, first, count, verdicts, is_copied);
    const std::size_t done = take_verdicts({verdicts, count}, stored);
    for (std::size_t i = 0; i < done; ++i)
      is_written[first + i] = verdicts[i] == pool::Verdict::kCommitted;
    is_full = !outcome && outcome.error().code == Code::kNoSpace && is_copied;
    if (is_full) stored.reason = Code::kNoSpace;
    if (!outcome && outcome.error().code == Code::kStale && is_copied && attempt++ < kAttempts)
      continue;
    if (outcome && stored.reason == Code::kRefused && stored.blocks != 0) {
      // The chain's beginning was evicted: look up again and continue after the last block in the pool.
      stored.reason = Code::kNoSpace;
      look_again();
      if (attempt++ < kAttempts) continue;
    }
    if (!outcome || done < count) break;
  }
  stored.written = static_cast<std::size_t>(std::count(
      is_written.begin(), is_written.begin() + static_cast<std::ptrdiff_t>(stored.blocks), true));
  Counters::add(call.counters.stores, 1);
  Counters::add(call.counters.stored_blocks, stored.written);
  Counters::add(call.counters.stored_bytes, stored.written * call.block_bytes);
  Counters::add(call.counters.duplicate_blocks, stored.blocks - stored.written);
  if (!outcome && !is_full)
    return ended_early(outcome.error(), stored.blocks, wanted, "are in the pool");
  if (stored.blocks == wanted) stored.reason.reset();
  return stored;
}

}  // namespace cachalot::client
