#include "client/copies.h"

#include <algorithm>
#include <bit>
#include <cinttypes>
#include <functional>

#include "base/fail_point.h"

namespace cachalot::client {
namespace {

// Blocks per call of the copy engine: few enough to check the deadline often, enough to share among
// several threads.
constexpr std::size_t kBlocksAtOnce = 16;
constexpr int kAttempts = 4;

// Copies the chosen part of a hit in portions.
class Load {
 public:
  Load(const Call& call, kv::LayerRange layers, std::span<const std::span<const TokenRange>> tokens,
       Hit& hit)
      : call_(call), layers_(layers), tokens_(tokens), hit_(hit) {}

  // Copies blocks [first, last). The hit ends at the first damaged one.
  Status copy(std::size_t first, std::size_t last) {
    const std::uint64_t bytes = call_.cache.cache().geometry().block_bytes();
    const bool is_whole = tokens_.empty() && layers_.first == 0 && layers_.last == 0;
    Extents extents;
    std::vector<memory::FusedHash> hashes;
    hashes.reserve(last - first);
    std::vector<kv::BlockCopy> copies;
    for (std::size_t i = first; i < last; ++i) {
      extents.add(call_.session.access(), hit_.found()[i].entry.block, bytes);
    }
    for (std::size_t i = first; i < last; ++i) {
      kv::BlockCopy copy{extents.of(i - first), call_.pages_of(i)};
      if (!tokens_.empty()) copy.tokens = tokens_[i];
      if (is_whole && hit_.read.has_checksum(i)) {
        copy.hash = &hashes.emplace_back(pool::padded_bytes(bytes));
      }
      copies.push_back(copy);
    }
    CACHALOT_TRY(call_.scatter(copies, layers_));
    for (std::size_t i = 0; i < copies.size(); ++i) {
      if (copies[i].hash == nullptr) continue;
      if (!hit_.read.check_bytes(first + i, copies[i].hash->finish())) break;
    }
    return {};
  }

 private:
  const Call& call_;
  const kv::LayerRange layers_;
  const std::span<const std::span<const TokenRange>> tokens_;
  Hit& hit_;
};

}  // namespace

Status Call::check_counts() const {
  const std::uint32_t per_block = cache.pages_per_block();
  if (pages.size() / per_block == hashes.size() && pages.size() % per_block == 0)
    return {};  // avoids an overflow of the product
  return Error::make(Code::kInvalidArgument,
                     "pages: %zu were given for %zu blocks, expected %u page(s) each", pages.size(),
                     hashes.size(), per_block);
}

Status Call::check() const {
  CACHALOT_TRY(session.check_usable());
  CACHALOT_TRY(check_counts());
  for (const PageId page : pages) {
    if (page < cache.cache().pages()) continue;
    return Error::make(Code::kInvalidArgument, "page: %u is not below the cache's %u", page,
                       cache.cache().pages());
  }
  return check_time("the call");
}

// Ascending pages, the common case, need one comparison each; others an entry in a small table.
Status Call::check_pages_differ() const {
  const auto unordered = std::adjacent_find(pages.begin(), pages.end(), std::greater_equal<>());
  if (unordered == pages.end()) return {};
  constexpr std::uint64_t kGolden = 0x9e3779b97f4a7c15u;
  const int bits = static_cast<int>(std::bit_width(pages.size())) + 1;  // at most half full
  // Indices into `pages` plus 1; 0: empty
  std::vector<std::uint32_t> table(std::size_t{1} << bits);
  for (std::size_t i = 0; i < pages.size(); ++i) {
    std::size_t at = (pages[i] * kGolden) >> (64 - bits);
    for (; table[at] != 0; at = (at + 1) & (table.size() - 1)) {
      if (pages[table[at] - 1] != pages[i]) continue;
      return Error::make(
          Code::kInvalidArgument,
          "pages: number %u and number %zu are both page %u, expected pages that differ",
          table[at] - 1, i, pages[i]);
    }
    table[at] = static_cast<std::uint32_t>(i + 1);
  }
  return {};
}

Status Call::gather(std::span<const kv::BlockCopy> blocks) const {
  if (behind == nullptr) return cache.gather(blocks, {}, stream);
  CACHALOT_TRY_ASSIGN(const CudaStream ours, behind->stream());
  CACHALOT_TRY(cache.gather(blocks, {}, ours, kv::WaitBy::kSleeping));
  behind->note_empty();
  return {};
}

Status Call::scatter(std::span<const kv::BlockCopy> blocks, kv::LayerRange layers) const {
  if (behind == nullptr) return cache.scatter(blocks, layers, stream);
  CACHALOT_TRY_ASSIGN(const CudaStream ours, behind->stream());
  CACHALOT_TRY(cache.scatter(blocks, layers, ours, kv::WaitBy::kSleeping));
  behind->note_empty();
  return {};
}

Status Call::check_time(const char* what) const {
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

// Ends the hit at a block of another size: it was not stored under this geometry.
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

}  // namespace

Result<std::size_t> load(const Call& call, kv::LayerRange layers,
                         std::span<const std::span<const TokenRange>> tokens) {
  CACHALOT_TRY(call.check());
  CACHALOT_TRY(call.check_pages_differ());
  if (!tokens.empty() && tokens.size() != call.hashes.size()) {
    return Error::make(Code::kInvalidArgument, "tokens: of %zu blocks, for %zu", tokens.size(),
                       call.hashes.size());
  }
  const std::uint64_t bytes = call.cache.cache().geometry().block_bytes();
  Hit hit = look_up(call.session, &call.counters, call.hashes, bytes);
  Load copies(call, layers, tokens, hit);
  Status in_time;
  for (std::size_t copied = 0; copied < hit.found().size();) {
    if (in_time = call.check_time("load"); !in_time) {
      hit.read.shorten(copied);
      break;
    }
    const std::size_t last = std::min(copied + kBlocksAtOnce, hit.found().size());
    CACHALOT_TRY(copies.copy(copied, last));
    copied = last;
    base::reach(base::FailPoint::kReadCopied);
  }
  const auto [valid, stale, is_damaged] = hit.read.validate();
  Counters::add(call.counters.stale_blocks, stale);
  Counters::add(call.counters.damaged_blocks, is_damaged);
  if (valid != 0) call.session.report_hit(hit.found().back());
  Counters::add(call.counters.loads, 1);
  Counters::add(call.counters.loaded_blocks, valid);
  Counters::add(call.counters.loaded_bytes, valid * bytes);
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

// Copies and commits blocks [first, first + count), or fewer if the pool grants fewer.
// @param is_copied  set to false if an error comes from the copy, not from the pool
Status store_batch(const Call& call, const BlockHash* parent, std::size_t first, std::size_t& count,
                   std::span<pool::Verdict> verdicts, bool& is_copied) {
  const std::uint64_t bytes = call.cache.cache().geometry().block_bytes();
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
    extents.add(call.session.access(), use.block, bytes);
  std::vector<memory::FusedHash> hashes(call.session.writes_checksums() ? count : 0,
                                        memory::FusedHash(pool::padded_bytes(bytes)));
  std::vector<kv::BlockCopy> copies;
  for (std::size_t i = 0; i < count; ++i) {
    kv::BlockCopy copy{extents.of(i), call.pages_of(first + i)};
    if (!hashes.empty()) copy.hash = &hashes[i];
    copies.push_back(copy);
  }
  if (const Status copied = call.gather(copies); !copied) {
    is_copied = false;
    // A GPU that failed in an unknown way may still store into the blocks; after any other error none does.
    if (copied.error().code == Code::kIo) {
      std::move(reservation).withhold();
    } else {
      std::move(reservation).end();
    }
    return copied;
  }
  std::vector<pool::WrittenBlock> written;
  for (std::size_t i = 0; i < count; ++i) {
    pool::WrittenBlock block{call.hashes[first + i], static_cast<std::uint32_t>(bytes), {}};
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

// Marks the parent as used, so that the pool does not evict the chain's beginning to make space for its end.
void touch_beginning(const Call& call, const BlockHash* parent, const Hit& present) {
  if (!present.found().empty()) return call.session.report_hit(present.found().back());
  pool::KeeperView view;
  pool::Found found;
  if (parent == nullptr || call.session.lookup({parent, 1}, view, {&found, 1}) == 0) return;
  call.session.report_hit(found);
}

}  // namespace

Result<Stored> store(const Call& call, const BlockHash* parent) {
  CACHALOT_TRY(call.check());
  const std::uint64_t bytes = call.cache.cache().geometry().block_bytes();
  const std::size_t wanted = call.hashes.size();
  Stored stored;
  std::vector<bool> is_written(wanted);
  const auto look_again = [&] {
    Hit present = look_up(call.session, nullptr, call.hashes, bytes);
    stored.blocks = present.found().size();
    if (stored.blocks < wanted) touch_beginning(call, parent, present);
  };
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
    outcome = store_batch(call, before, first, count, verdicts, is_copied);
    const std::size_t done = take_verdicts({verdicts, count}, stored);
    for (std::size_t i = 0; i < done; ++i)
      is_written[first + i] = verdicts[i] == pool::Verdict::kCommitted;
    is_full = !outcome && outcome.error().code == Code::kNoSpace && is_copied;
    if (is_full) stored.reason = Code::kNoSpace;
    if (!outcome && outcome.error().code == Code::kStale && attempt++ < kAttempts) continue;
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
  Counters::add(call.counters.stored_bytes, stored.written * bytes);
  Counters::add(call.counters.duplicate_blocks, stored.blocks - stored.written);
  if (!outcome && !is_full)
    return ended_early(outcome.error(), stored.blocks, wanted, "are in the pool");
  if (stored.blocks == wanted) stored.reason.reset();
  return stored;
}

}  // namespace cachalot::client
