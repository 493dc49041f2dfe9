#include "client/block_copies.h"

#include <algorithm>

#include "base/fail_point.h"

namespace cachalot::client {

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
            std::uint64_t block_bytes, std::uint32_t groups) {
  std::vector<pool::Found> room(hashes.size());
  pool::ValidatedRead read = session.begin_read(hashes, room);
  const auto other =
      std::find_if(read.found().begin(), read.found().end(),
                   [&](const pool::Found& found) { return found.entry.length != block_bytes; });
  read.shorten(static_cast<std::size_t>(other - read.found().begin()));
  Hit hit{std::move(room), std::move(read), groups};
  hit.shorten_to_whole();
  if (counters == nullptr) return hit;
  Counters::add(counters->lookups, 1);
  Counters::add(counters->looked_up_blocks, hashes.size());
  Counters::add(counters->hit_blocks, hit.found().size());
  return hit;
}

Error ended_early(const Error& error, std::size_t blocks, std::size_t of, const char* did) {
  if (error.code != Code::kTimeout && error.code != Code::kCancelled) return error;
  Error told = Error::make(error.code, "%.150s; the first %zu of %zu blocks %s", error.message,
                           blocks, of, did);
  told.detail = blocks;
  return told;
}

namespace {

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
  for (std::size_t i = 0; i < blocks.size(); ++i) {
    if (blocks[i].hash == nullptr) continue;
    if (!hit.read.check_bytes(first + i, blocks[i].hash->finish())) break;
  }
  return {};
}

}  // namespace

Result<std::size_t> load_blocks(const BlockCall& call, BlockTarget& target) {
  Hit hit = look_up(call.session, &call.counters, call.hashes, call.block_bytes, call.groups);
  Status in_time;
  const std::size_t at_once = target.blocks_at_once(call.block_bytes) * call.groups;
  std::size_t copied = 0;
  std::uint64_t copied_bytes = 0;
  while (copied < hit.found().size()) {
    if (in_time = call.check_time("load"); !in_time) {
      hit.read.shorten(copied);
      break;
    }
    const std::size_t last = std::min(copied + at_once, hit.found().size());
    CACHALOT_TRY(load_batch(call, target, hit, copied, last));
    copied = last;
    const std::uint64_t bytes = target.copied_bytes(copied, call.block_bytes);
    Counters::add(call.counters.copied_bytes, bytes - copied_bytes);
    copied_bytes = bytes;
    base::reach(base::FailPoint::kReadCopied);
  }
  const auto [valid, stale, is_damaged] = hit.read.validate();
  Counters::add(call.counters.stale_blocks, stale);
  if (is_damaged) call.session.note_damage(hit.room[valid].entry);
  hit.shorten_to_whole();
  const std::size_t loaded = hit.found().size();
  const bool is_reported_later = call.goes_on && loaded == call.hashes.size();
  if (!is_reported_later) call.session.report_hits(hit.deepest());
  Counters::add(call.counters.loads, 1);
  Counters::add(call.counters.loaded_blocks, loaded);
  Counters::add(call.counters.loaded_bytes,
                loaded == copied ? copied_bytes : target.copied_bytes(loaded, call.block_bytes));
  if (!in_time) {
    return ended_early(in_time.error(), hit.blocks(), call.hashes.size() / call.groups,
                       "are loaded");
  }
  return hit.blocks();
}

}  // namespace cachalot::client
