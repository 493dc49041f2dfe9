#include "pool/client/block_reader.h"

#include <algorithm>
#include <cstring>

#include "base/fail_point.h"
#include "pool/client/copy_in_pieces.h"
#include "pool/reader/validated_read.h"

namespace cachalot::pool {

using base::FailPoint;
using memory::kLineBytes;

namespace {

// Copies a payload out. @return its checksum, if asked for
std::uint64_t copy_out(const Access& access, const Entry& entry, std::byte* to, bool hashed) {
  memory::FusedHash hash(padded_bytes(entry.length));
  memory::FusedHash* use = hashed ? &hash : nullptr;
  std::uint64_t done = 0;
  access.for_each_extent(
      entry.block, padded_bytes(entry.length), [&](std::byte* from, std::uint64_t bytes) {
        const std::uint64_t whole =
            std::min(bytes, (entry.length - done) / kLineBytes * kLineBytes);
        copy_in_pieces(whole, FailPoint::kReadBulk, [&](std::uint64_t at, std::uint64_t length) {
          access.domain().read_bulk(to + done + at, from + at, length, use);
        });
        done += whole;
        if (whole == bytes) return;
        // The last line is only partly payload: it is copied through a line of our own.
        memory::Line tail;
        access.domain().read_bulk(&tail, from + whole, kLineBytes, use);
        std::memcpy(to + done, &tail, entry.length - done);
        done = entry.length;
      });
  return hashed ? hash.finish() : 0;
}

}  // namespace

BlockReader::BlockReader(const ClientContext& context, const ClientNamespace& name_space,
                         LiveClientCounters& counters)
    : context_(context),
      namespace_(name_space),
      counters_(counters),
      directory_(context.access),
      verifies_(context.options.verify_checksums.value_or(context.access.geometry.domain !=
                                                          memory::DomainKind::kCoherent)) {}

std::size_t BlockReader::lookup(std::span<const BlockHash> hashes, std::span<Found> found) {
  const std::size_t hits = directory_.lookup(hashes, namespace_.id(), view_, found);
  ++counters_[ClientCounter::kLookups];
  counters_[ClientCounter::kLookedUpBlocks] += hashes.size();
  counters_[ClientCounter::kHitBlocks] += hits;
  base::reach(FailPoint::kLookedUp);
  return hits;
}

std::size_t BlockReader::read(std::span<const Found> found, std::span<std::byte* const> to) {
  ValidatedRead read(context_.access, view_, found, verifies_);
  std::uint64_t bytes = 0;
  for (std::size_t i = 0; i < read.found().size(); ++i) {
    const bool hashed = read.has_checksum(i);
    const std::uint64_t checksum = copy_out(context_.access, found[i].entry, to[i], hashed);
    bytes += found[i].entry.length;
    if (hashed) read.check_bytes(i, checksum);
  }
  base::reach(FailPoint::kReadCopied);
  const ValidatedRead::Outcome outcome = read.validate();
  counters_[ClientCounter::kStaleReads] += outcome.stale != 0;
  counters_[ClientCounter::kDamagedReads] += outcome.is_damaged;
  counters_[ClientCounter::kReadBlocks] += outcome.valid;
  counters_[ClientCounter::kReadBytes] += bytes;
  base::reach(FailPoint::kReadValidated);
  return outcome.valid;
}

Result<std::uint32_t> BlockReader::get(const BlockHash& hash, std::span<std::byte> to,
                                       Found& found) {
  constexpr int kAttempts = 4;
  bool is_damaged = false;
  for (int attempt = 0; attempt < kAttempts; ++attempt) {
    if (lookup({&hash, 1}, {&found, 1}) == 0) {
      is_damaged = false;
      break;
    }
    if (found.entry.length > to.size()) {
      return Error::make(Code::kNoSpace, "get: the block has %u bytes, the buffer %zu",
                         found.entry.length, to.size());
    }
    std::byte* const target = to.data();
    const std::uint64_t damaged_before = counters_[ClientCounter::kDamagedReads];
    if (read({&found, 1}, {&target, 1}) == 1) return found.entry.length;
    is_damaged = counters_[ClientCounter::kDamagedReads] != damaged_before;
  }
  if (is_damaged) {
    return Error::make(
        Code::kCorrupt,
        "get: the bytes of block %s do not match their checksum (`cachalot evict` drops it)",
        block_hash::to_hex(hash).c_str());
  }
  return Error::make(Code::kNotFound, "get: block %s is not in the pool",
                     block_hash::to_hex(hash).c_str());
}

}  // namespace cachalot::pool
