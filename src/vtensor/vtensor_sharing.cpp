// How vTensors share the chunks of equal prefixes.
#include <algorithm>
#include <cinttypes>
#include <utility>

#include "vtensor/vtensor_set.h"

namespace cachalot::vtensor {

// Maps the full chunks, for which `found` holds a reference each; they are dropped when it fails.
Status VTensorSet::borrow(VTensor& vtensor, const PrefixTable::Found& found) {
  std::vector<Chunk> unused;
  const Status done = vtensor.planes_.append(found.full, device_memory::Access::kRead, unused);
  store_.drop(unused);
  if (!done) return done;
  vtensor.shared_tokens_ = found.tokens;
  const std::lock_guard lock(mutex_);
  vtensor.borrowed_chunks_ = found.full.chunks.size();
  stats_.borrowed_chunks += vtensor.borrowed_chunks_;
  stats_.borrowed_chunks_total += vtensor.borrowed_chunks_;
  return {};
}

// The tails go to chunks that are mapped already.
Status VTensorSet::copy_tails_of(VTensor& vtensor, const PrefixTable::Found& found) {
  std::vector<TailSource> sources;
  std::uint64_t bytes = 0;
  for (const PrefixTable::Found::Tail& tail : found.tails) {
    const std::uint64_t at = layout_.full_chunks(tail.plane, found.tokens) * layout_.chunk_bytes();
    sources.push_back({.handle = tail.chunk.handle,
                       .to = vtensor.base() + layout_.plane(tail.plane).at + at,
                       .bytes = tail.bytes});
    bytes += tail.bytes;
  }
  bool is_stuck = false;
  const Status done = copy_tails(backend_, layout_.chunk_bytes(), sources, options_.copy, is_stuck);
  const std::lock_guard lock(mutex_);
  if (done) stats_.copied_bytes += bytes;
  if (!is_stuck) return done;
  // They are mapped where they are never unmapped: with one reference more they never become ready.
  for (const auto& tail : found.tails) store_.share({&tail.chunk, 1});
  stats_.stuck_chunks += found.tails.size();
  return done;
}

void VTensorSet::forget_sharing(VTensor& vtensor) {
  vtensor.shared_tokens_ = 0;
  const std::lock_guard lock(mutex_);
  prefixes_.unpin(std::exchange(vtensor.pinned_, nullptr));
  stats_.borrowed_chunks -= std::exchange(vtensor.borrowed_chunks_, 0);
}

Status VTensorSet::record(VTensor& vtensor, std::span<const BlockHash> hashes) {
  const Turn turn(*this, vtensor);
  std::uint64_t tokens = 0;
  if (__builtin_mul_overflow(hashes.size(), options_.block_tokens, &tokens) ||
      options_.block_tokens == 0 || tokens > vtensor.ready_tokens()) {
    return Error::make(Code::kInvalidArgument,
                       "vtensor: recording %zu blocks of %" PRIu64
                       " tokens, expected blocks within the %" PRIu64 " tokens that have memory",
                       hashes.size(), options_.block_tokens, vtensor.ready_tokens());
  }
  {
    const std::lock_guard lock(mutex_);
    if (prefixes_.known(hashes) == hashes.size()) {
      enter(vtensor, hashes);
      return {};
    }
  }
  CACHALOT_TRY(vtensor.planes_.protect(tokens));  // before any request can find the chunks
  // What cannot be written must not be cut off and computed again, whether others get it or not.
  const bool protects = layout_.full_chunks(tokens) > layout_.full_chunks(vtensor.shared_tokens_);
  const std::lock_guard lock(mutex_);
  if (enter(vtensor, hashes) || protects) {
    vtensor.shared_tokens_ = std::max(vtensor.shared_tokens_, tokens);
  }
  return {};
}

// @return whether there were new blocks
bool VTensorSet::enter(VTensor& vtensor, std::span<const BlockHash> hashes) {
  const PrefixTable::Recorded recorded = prefixes_.record(hashes, vtensor.planes_);
  store_.share(recorded.references);
  prefixes_.pin(recorded.last);
  prefixes_.unpin(std::exchange(vtensor.pinned_, recorded.last));
  return !recorded.references.empty();
}

// The first tokens of `from`, as if the table had found them. Called with its turn held.
Result<PrefixTable::Found> VTensorSet::lend(VTensor& from, std::uint64_t tokens) {
  PrefixTable::Found found;
  found.tokens = options_.copy ? tokens : layout_.without_tail(tokens);
  CACHALOT_TRY(from.planes_.protect(found.tokens));
  for (std::uint64_t p = 0; p < layout_.planes(); ++p) {
    const std::span<const Chunk> chunks = from.planes_.plane(p);
    const std::uint64_t full = layout_.full_chunks(p, found.tokens);
    found.full.counts.push_back(full);
    found.full.chunks.insert(found.full.chunks.end(), chunks.begin(), chunks.begin() + full);
    const std::uint64_t tail = layout_.tail_bytes(p, found.tokens);
    if (tail != 0) found.tails.push_back({.plane = p, .bytes = tail, .chunk = chunks[full]});
  }
  store_.share(found.full.chunks);
  from.shared_tokens_ = std::max(from.shared_tokens_, found.tokens);
  return found;
}

Result<std::uint64_t> VTensorSet::alias(VTensor& to, VTensor& from, std::uint64_t tokens) {
  if (&to == &from) {
    return Error::make(Code::kInvalidArgument, "vtensor: alias of itself, expected of another one");
  }
  const bool to_first = &to < &from;  // one order for all threads, so no deadlock
  const Turn first(*this, to_first ? to : from);
  const Turn second(*this, to_first ? from : to);
  CACHALOT_TRY(check_tokens(tokens, std::min(from.ready_tokens(), to.max_tokens())));
  if (to.planes_.chunks() != 0) {
    return Error::make(Code::kInvalidArgument,
                       "vtensor: alias where %" PRIu64 " chunks are mapped, expected none",
                       to.planes_.chunks());
  }
  const std::uint64_t shared_before = from.shared_tokens_;
  CACHALOT_TRY_ASSIGN(const PrefixTable::Found found, lend(from, tokens));
  Status done = borrow(to, found);
  if (done) done = grow(to, found.tokens);
  if (done) done = copy_tails_of(to, found);
  if (done) return found.tokens;
  std::vector<Chunk> freed;
  static_cast<void>(to.planes_.truncate(0, freed));  // what is left stays with `to`
  store_.drop(freed);
  forget_sharing(to);
  from.planes_.unprotect(shared_before);
  from.shared_tokens_ = shared_before;
  return done.error();
}

}  // namespace cachalot::vtensor
