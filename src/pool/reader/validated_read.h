// Rule R6: what was copied out of the pool counts only if its directory entries and the keeper line,
// read once more after the last byte, are unchanged. Every read of payloads is one of these.
//
//   1. look_up() finds the blocks and remembers their entries.
//   2. The caller copies the payloads of found() as it likes, by any threads, and hands the checksum
//      of each block that has_checksum() to check_bytes().
//   3. validate(), after the last byte of all copies was loaded. Now found() is what counts.
//
// Steps 2 and 3 may be repeated, for a consumer that uses layer after layer.
//
// Invariants
//   1. found() is a prefix of what the lookup found, and never grows.
//   2. Bytes of a block that is not in found() after validate() mean nothing.
//
// @threads one at a time
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "pool/reader/directory.h"

namespace cachalot::pool {

class ValidatedRead {
 public:
  // What one validate() has seen.
  struct Outcome {
    std::size_t valid = 0;  // leading blocks whose bytes count: found().size()
    std::size_t stale = 0;  // blocks from the first one on that is another use by now
    bool is_damaged =
        false;  // the first block after the valid ones is the same use, with wrong bytes
  };

  // Finds the longest published prefix of `hashes`; see DirectoryReader::lookup.
  // @param room      for what is found: at least as many as hashes; it outlives this
  // @param verifies  has_checksum() names the blocks that have one
  static ValidatedRead look_up(const Access& access, std::span<const BlockHash> hashes,
                               std::uint32_t namespace_id, std::span<Found> room, bool verifies);
  // Of an earlier lookup, which saw `view`. `found` outlives this.
  ValidatedRead(const Access& access, const KeeperView& view, std::span<const Found> found,
                bool verifies)
      : reader_(access), view_(view), found_(found), verifies_(verifies) {}
  ValidatedRead(ValidatedRead&&) = default;
  ValidatedRead& operator=(ValidatedRead&&) = default;

  // The blocks to copy; after validate() those whose bytes count.
  std::span<const Found> found() const { return found_; }
  // Leaves out the blocks from `blocks` on.
  void shorten(std::size_t blocks) {
    if (blocks >= found_.size()) return;
    found_ = found_.first(blocks);
    has_rejected_ = false;  // why is no longer a question
  }

  // Whether block i was stored with a checksum, and this reader verifies it.
  bool has_checksum(std::size_t i) const {
    return verifies_ && (found_[i].entry.flags & kEntryHasChecksum) != 0;
  }
  // `checksum` is that of the bytes copied from block i. @return false: they are wrong, as by reject()
  bool check_bytes(std::size_t i, std::uint64_t checksum) {
    if (checksum == found_[i].entry.checksum) return true;
    reject(i);
    return false;
  }
  // The bytes of block i are not what its writer wrote: found() ends before it. validate() says why.
  void reject(std::size_t i) {
    shorten(i);
    has_rejected_ = true;
  }

  // R6.
  // @param is_pinned  the caller has held a pin since before the lookup: nothing changed, nothing is read
  // @cost one line per block, overlapped, 128 at a time, and the keeper lines
  [[nodiscard]] Outcome validate(bool is_pinned = false);

 private:
  std::size_t count_unchanged(std::span<const Found> found) const;

  DirectoryReader reader_;
  KeeperView view_;
  std::span<const Found> found_;
  bool verifies_;
  bool has_rejected_ = false;  // the block after found()
};

}  // namespace cachalot::pool
