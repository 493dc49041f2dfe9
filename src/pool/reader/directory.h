// The directory as clients read it: which block holds the payload of a hash.
//
// It is divided into buckets of 64 slots, a line each. A hash has a home slot; if that was taken
// when it came, its entry stands in any other slot of the bucket, and the home line's `spill` bit
// for that slot is set. So a reader looks at one line, and only where bits are set at those: at the
// rated load of one half 1.3 lines for a hit and 1.1 for a miss while the directory fills, 1.7 and
// 1.25 after much coming and going, all of a prompt's lines in two overlapped passes. A commit finds
// its bucket full with a probability of 4e-7 at that load.
//
// Invariants
//   1. An entry stands in the bucket of its hash; it is at home, or its bit is set in its home line.
//   2. Entries never move. A set bit may point to a free or foreign entry: the hash in it decides.
//   3. A slot's line always checks; its own CRC says whether it was torn (R5).
#pragma once

#include <cachalot/result.h>

#include <cstdint>
#include <span>

#include "base/rng.h"
#include "block_hash/block_hash.h"
#include "pool/format/access.h"

namespace cachalot::pool {

struct Home {
  std::uint32_t bucket;  // first slot of it
  std::uint32_t slot;
};

inline Home home_of(const BlockHash& hash, std::uint32_t namespace_id, std::uint32_t slots) {
  const std::uint64_t x = base::mix64(hash.low ^ (namespace_id * 0x9e3779b97f4a7c15u) ^ hash.high);
  const std::uint64_t buckets = slots / kBucketSlots;
  const auto bucket = static_cast<std::uint32_t>(((x >> 32) * buckets) >> 32) * kBucketSlots;
  return {bucket, bucket + static_cast<std::uint32_t>(x % kBucketSlots)};
}

// Which keeper epochs count, as of one reading of the keeper lines.
struct KeeperView {
  std::uint32_t epoch = 0;  // 0: no keeper ever ruled
  std::uint32_t min_epoch = 0;
  std::uint32_t keeper = 0;  // the ruling one's slot
  std::uint32_t flags = 0;

  // True if an entry of this epoch counts.
  bool admits(std::uint32_t entry_epoch) const {
    return (entry_epoch >= min_epoch) & (entry_epoch <= epoch) & (epoch != 0);
  }
};

// An entry as it was found, with what is needed to see later that it is still the same.
struct Found {
  std::uint32_t slot = 0;
  Entry entry{};
};

// True if both are the same use of the same block. Spill and CRC are not part of an entry's
// identity: they change when neighbours come and go.
inline bool same_entry(const Entry& a, const Entry& b) {
  return a.hash_low == b.hash_low && a.hash_high == b.hash_high && a.block == b.block &&
         a.parent == b.parent && a.length == b.length && a.epoch == b.epoch &&
         a.generation == b.generation && a.namespace_id == b.namespace_id &&
         a.checksum == b.checksum && a.state == b.state && a.flags == b.flags;
}

// Reads the directory; keeps nothing. @threads any
class DirectoryReader {
 public:
  explicit DirectoryReader(const Access& access) : access_(&access) {}

  // The keeper lines, read now.
  KeeperView read_keepers() const;

  // Finds the longest published prefix of `hashes`. Its payloads may be accessed: on the devices of a growable pool
  // that cannot be mapped here, nothing is found.
  // @shape   hashes: [n], one per block, in order; found: at least n
  // @return  k <= n: found[0, k) are filled
  // @cost    about 1.3 to 1.7 lines per block, 128 blocks in two overlapped passes; no
  //          allocation, no lock, no RPC
  // @source  Beluga (arXiv 2511.20172) §6; differs: read directly, without an RPC
  std::size_t lookup(std::span<const BlockHash> hashes, std::uint32_t namespace_id,
                     KeeperView& view, std::span<Found> found) const;

  // Which of `hashes` are published, each by itself: none has to follow another.
  // @shape  hashes: [n]; is_published: at least n, all are written
  // @cost   as lookup(); the keeper lines are read again every 128 hashes
  void find_each(std::span<const BlockHash> hashes, std::uint32_t namespace_id,
                 std::span<bool> is_published) const;

  // Blocks that there are now, and how many of them may be published at once: of a pool that may grow, fewer than its
  // geometry says.
  std::uint32_t blocks() const;
  std::uint32_t capacity_blocks() const { return blocks() - access_->geometry.spare_blocks(); }

  // What kKeeperSlots lines, read together, say.
  KeeperView ruling(const memory::Line* lines) const;
  const Access& access() const { return *access_; }

 private:
  static constexpr std::size_t kBatch = 128;

  class Batch;

  bool holds(const memory::Line& line, const BlockHash& hash, std::uint32_t namespace_id,
             const KeeperView& view) const;
  // How many of the leading blocks lie in memory that this process has mapped.
  std::size_t accessible(const KeeperView& view, std::span<const Found> found) const;

  const Access* access_;
};

}  // namespace cachalot::pool
