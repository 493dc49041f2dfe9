#include "client/objects.h"

#include <algorithm>
#include <array>
#include <cinttypes>
#include <vector>

#include "client/copies.h"
#include "kv/cpu/run_batch.h"

namespace cachalot::client {

Status BufferTable::add(void* data, std::uint64_t bytes) {
  const auto begin = reinterpret_cast<std::uintptr_t>(data);
  // The limit of a process: addresses have at most 57 bits, and the kernel uses half of them.
  constexpr std::uint64_t kMostBytes = std::uint64_t{1} << 56;
  if (data == nullptr || bytes == 0 || bytes > kMostBytes || begin + bytes < begin) {
    return Error::make(Code::kInvalidArgument,
                       "buffer: %" PRIu64 " bytes at %p are no memory, expected 1 to 2^56 bytes",
                       bytes, data);
  }
  const std::lock_guard lock(mutex_);
  const auto next = buffers_.lower_bound(begin);
  const bool hits_next = next != buffers_.end() && next->first - begin < bytes;
  const bool hits_last =
      next != buffers_.begin() && begin - std::prev(next)->first < std::prev(next)->second;
  if (hits_next || hits_last) {
    return Error::make(Code::kInvalidArgument,
                       "buffer: %" PRIu64 " bytes at %p overlap one that is registered", bytes,
                       data);
  }
  buffers_.emplace(begin, bytes);
  return {};
}

Status BufferTable::remove(void* data) {
  const std::lock_guard lock(mutex_);
  if (buffers_.erase(reinterpret_cast<std::uintptr_t>(data)) != 0) return {};
  return Error::make(Code::kNotFound, "buffer: none that is registered begins at %p", data);
}

Result<std::uint64_t> BufferTable::check(std::span<const Buffer> parts) const {
  std::uint64_t total = 0;
  for (std::size_t i = 0; i < parts.size(); ++i) {
    const auto begin = reinterpret_cast<std::uintptr_t>(parts[i].data);
    const auto after = buffers_.upper_bound(begin);
    const bool is_inside =
        after != buffers_.begin() && begin - std::prev(after)->first <= std::prev(after)->second &&
        parts[i].bytes <= std::prev(after)->second - (begin - std::prev(after)->first);
    if (!is_inside) {
      return Error::make(Code::kInvalidArgument,
                         "part %zu: %" PRIu64 " bytes at %p lie in no registered buffer", i,
                         parts[i].bytes, parts[i].data);
    }
    if (__builtin_add_overflow(total, parts[i].bytes, &total)) {
      return Error::make(Code::kInvalidArgument, "parts: more than 2^64 bytes");
    }
  }
  return total;
}

Status Objects::exists(std::span<const std::string_view> keys, std::span<bool> present) const {
  CACHALOT_TRY(session_.check_usable());
  if (keys.size() != present.size()) {
    return Error::make(Code::kInvalidArgument, "exists: %zu keys, and room for %zu answers",
                       keys.size(), present.size());
  }
  constexpr std::size_t kBatch = 128;  // the directory's batch size; needs no allocation
  std::array<BlockHash, kBatch> names;
  for (std::size_t done = 0; done < keys.size();) {
    const std::size_t count = std::min(keys.size() - done, kBatch);
    for (std::size_t i = 0; i < count; ++i) names[i] = block_hash::hash_key(space_, keys[done + i]);
    session_.find_each({names.data(), count}, present.subspan(done, count));
    for (std::size_t i = 0; i < count; ++i)
      present[done + i] = present[done + i] && !session_.has_damaged(names[i]);
    done += count;
  }
  return {};
}

Result<std::uint64_t> Objects::put(std::string_view key, std::span<const Buffer> parts) {
  CACHALOT_TRY(session_.check_usable());
  const auto held = buffers_.hold();
  CACHALOT_TRY_ASSIGN(const std::uint64_t bytes, buffers_.check(parts));
  const std::uint64_t most = session_.access().geometry.block_bytes;
  if (bytes == 0 || bytes > most) {
    return Error::make(Code::kInvalidArgument,
                       "put: an object of %" PRIu64 " bytes is not within 1 to %" PRIu64, bytes,
                       most);
  }
  const BlockHash name = block_hash::hash_key(space_, key);
  make_way(session_, {&name, 1}, {});
  pool::KeeperView view;
  pool::Found found;
  if (session_.lookup({&name, 1}, view, {&found, 1}) == 1) return std::uint64_t{0};
  CACHALOT_TRY_ASSIGN(pool::OpenReservation reservation, session_.begin_write(1));
  Extents extents;
  extents.add(session_.access(), reservation.uses()[0].block, bytes);
  memory::FusedHash hash(pool::padded_bytes(bytes));
  memory::Domain& domain = session_.access().domain();
  kv::GatherBatch batch(domain);
  batch.begin_block(extents.of(0), session_.writes_checksums() ? &hash : nullptr);
  std::uint64_t at = 0;
  for (const Buffer& part : parts) {
    batch.add(at, static_cast<const std::byte*>(part.data), part.bytes);
    at += part.bytes;
  }
  batch.end_block();
  batch.flush();
  Counters::add(counters_.copied_bytes, bytes);
  domain.order();
  pool::WrittenBlock written{name, static_cast<std::uint32_t>(bytes), {}};
  if (session_.writes_checksums()) written.checksum = hash.finish();
  pool::Verdict verdict{};
  CACHALOT_TRY(
      session_.commit(nullptr, std::move(reservation).end(), {&written, 1}, {&verdict, 1}));
  if (const std::optional<Code> reason = reason_of(verdict)) {
    return Error::make(*reason, "put: the keeper did not take the object: %s", code_name(*reason));
  }
  const bool is_new = verdict == pool::Verdict::kCommitted;  // else another client was faster
  Counters::add(counters_.stores, 1);
  Counters::add(is_new ? counters_.stored_blocks : counters_.duplicate_blocks, 1);
  if (is_new) Counters::add(counters_.stored_bytes, bytes);
  return is_new ? bytes : std::uint64_t{0};
}

namespace {

// If parts overlapped, one would overwrite bytes of another.
Status check_parts_differ(std::span<const Buffer> parts) {
  const auto begin = [&](std::size_t i) { return reinterpret_cast<std::uintptr_t>(parts[i].data); };
  std::vector<std::size_t> order;
  for (std::size_t i = 0; i < parts.size(); ++i) {
    if (parts[i].bytes != 0) order.push_back(i);
  }
  std::sort(order.begin(), order.end(),
            [&](std::size_t a, std::size_t b) { return begin(a) < begin(b); });
  for (std::size_t i = 1; i < order.size(); ++i) {
    if (begin(order[i]) - begin(order[i - 1]) >= parts[order[i - 1]].bytes) continue;
    const auto [first, second] = std::minmax(order[i - 1], order[i]);
    return Error::make(Code::kInvalidArgument,
                       "get: part %zu and part %zu overlap, expected parts that differ", first,
                       second);
  }
  return {};
}

}  // namespace

Result<std::uint64_t> Objects::get(std::string_view key, std::span<const Buffer> parts) {
  constexpr int kMostReads = 4;
  CACHALOT_TRY(session_.check_usable());
  const auto held = buffers_.hold();
  CACHALOT_TRY_ASSIGN(const std::uint64_t bytes, buffers_.check(parts));
  CACHALOT_TRY(check_parts_differ(parts));
  const BlockHash name = block_hash::hash_key(space_, key);
  const PromptCounts::Load counted = session_.prompts().begin_load({&name, 1});
  for (int attempt = 0; attempt < kMostReads; ++attempt) {
    Result<std::uint64_t> got = get_once(name, parts, bytes);
    if (got) session_.prompts().end_load(counted, 1);
    if (got || got.error().code != Code::kStale) return got;
  }
  return Error::make(Code::kNotFound, "get: no object of this key is in the pool");
}

Result<std::uint64_t> Objects::get_once(const BlockHash& name, std::span<const Buffer> parts,
                                        std::uint64_t bytes) {
  pool::Found found;
  Counters::add(counters_.lookups, 1);
  Counters::add(counters_.looked_up_blocks, 1);
  pool::ValidatedRead read = session_.begin_read({&name, 1}, {&found, 1});
  if (read.found().empty()) {
    return Error::make(Code::kNotFound, "get: no object of this key is in the pool");
  }
  Counters::add(counters_.hit_blocks, 1);
  if (found.entry.length != bytes) {
    return Error::make(Code::kInvalidArgument, "get: the object has %u bytes, the parts %" PRIu64,
                       found.entry.length, bytes);
  }
  Extents extents;
  extents.add(session_.access(), found.entry.block, bytes);
  memory::Domain& domain = session_.access().domain();
  domain.prepare_read(extents.of(0).data(), extents.of(0).size());
  const bool verifies = read.has_checksum(0);
  memory::FusedHash hash(pool::padded_bytes(bytes));
  kv::ScatterBatch batch(domain, kv::Preparation::kDone);
  batch.begin_block(extents.of(0), verifies ? &hash : nullptr);
  std::uint64_t at = 0;
  for (const Buffer& part : parts) {
    batch.add(at, static_cast<std::byte*>(part.data), part.bytes);
    at += part.bytes;
  }
  batch.flush();
  Counters::add(counters_.copied_bytes, bytes);
  if (verifies) read.check_bytes(0, hash.finish());
  const pool::ValidatedRead::Outcome outcome = read.validate();
  if (outcome.stale != 0) {
    Counters::add(counters_.stale_blocks, 1);
    return Error::make(Code::kStale, "get: the object was evicted while it was read");
  }
  if (outcome.is_damaged) {
    session_.note_damage(found.entry);
    return Error::make(Code::kCorrupt, "get: the object's bytes do not match its checksum");
  }
  session_.report_hits({&found, 1});
  Counters::add(counters_.loads, 1);
  Counters::add(counters_.loaded_blocks, 1);
  Counters::add(counters_.loaded_bytes, bytes);
  return bytes;
}

}  // namespace cachalot::client
