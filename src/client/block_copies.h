// Whole calls on blocks, wherever the engine keeps their bytes: look up, copy, validate. What an engine's memory
// looks like is known to a BlockTarget or BlockSource only. Stores: chain_store.h.
#pragma once

#include <cachalot/client.h>

#include <algorithm>
#include <atomic>
#include <vector>

#include "client/hit_rate/counters.h"
#include "client/session.h"
#include "memory/fused_hash.h"

namespace cachalot::client {

// Few enough to look at the deadline often, enough to share among several threads.
inline constexpr std::size_t kBlocksAtOnce = 16;

// Where a block lies in the pool.
struct PoolBlock {
  std::span<const memory::Extent> extents;
  memory::FusedHash* hash =
      nullptr;  // takes the checksum of the copied bytes; null: none is wanted
};

// The engine's memory that a load writes.
class BlockTarget {
 public:
  virtual ~BlockTarget() = default;
  // Copies blocks [first, first + blocks.size()) of the call out of the pool.
  virtual Status scatter(std::size_t first, std::span<const PoolBlock> blocks) = 0;
  // Whether each block is copied whole. A part has no checksum.
  virtual bool is_whole() const { return true; }
  // Bytes that were copied of the call's first blocks, of `block_bytes` each.
  virtual std::uint64_t copied_bytes(std::size_t blocks, std::uint64_t block_bytes) const {
    return blocks * block_bytes;
  }
  // Blocks of so many bytes that scatter() is given at most. Between two of its calls the load looks at its deadline.
  virtual std::size_t blocks_at_once(std::uint64_t) const { return kBlocksAtOnce; }
};

// The engine's memory that a store reads.
class BlockSource {
 public:
  virtual ~BlockSource() = default;
  // Copies blocks [first, first + blocks.size()) of the call into the pool.
  virtual Status gather(std::size_t first, std::span<const PoolBlock> blocks) = 0;
  // Whether a copy may still be in flight after this error of gather(): the pool then never reuses the blocks.
  virtual bool may_still_copy(const Error&) const { return false; }
};

// What loads and stores have in common. All referenced objects outlive it.
struct BlockCall {
  Session& session;
  Counters& counters;
  std::span<const BlockHash> hashes;
  std::uint64_t block_bytes;
  Deadline deadline;
  const std::atomic<bool>* cancelled = nullptr;
  // Store only: of all blocks, as many of each; empty: none are kept.
  std::span<const std::uint32_t> tokens = {};
  bool goes_on = false;  // load only: a hit of all blocks is reported by a later call
  // Load only: so many consecutive `hashes` are one block of the caller. Only whole ones count.
  std::uint32_t groups = 1;

  // @errors kTimeout, kCancelled
  Status check_time(const char* what) const;
};

// The extents of several blocks in one list.
class Extents {
 public:
  void add(const pool::Access& access, std::uint32_t block, std::uint64_t bytes);
  std::span<const memory::Extent> of(std::size_t i) const {
    return std::span(extents_).subspan(starts_[i], starts_[i + 1] - starts_[i]);
  }

 private:
  std::vector<memory::Extent> extents_;
  std::vector<std::size_t> starts_ = {0};
};

// The blocks that a lookup found and the call still counts as valid.
struct Hit {
  std::vector<pool::Found> room;
  pool::ValidatedRead read;
  std::uint32_t groups = 1;  // as BlockCall::groups

  std::span<const pool::Found> found() const { return read.found(); }
  std::size_t blocks() const { return found().size() / groups; }
  // The deepest block of each group: a report of it stands for the group's whole prefix.
  std::span<const pool::Found> deepest() const {
    return found().last(std::min<std::size_t>(groups, found().size()));
  }
  // Leaves out a block that is not whole.
  void shorten_to_whole() { read.shorten(blocks() * groups); }
};
// Ends the hit at a block of another size.
// `counters`: null if hits are not counted (stores).
Hit look_up(Session& session, Counters* counters, std::span<const BlockHash> hashes,
            std::uint64_t block_bytes, std::uint32_t groups = 1);

// Before a store: drops what this session found damaged, which no sound block could replace otherwise.
void make_way(Session& session, std::span<const BlockHash> hashes, const Deadline& deadline);

// As Client::load, without the checks of the engine's side.
Result<std::size_t> load_blocks(const BlockCall& call, BlockTarget& target);

// The error of a call that timed out or was cancelled; its detail is the number of finished blocks.
// @param did  "are loaded"
Error ended_early(const Error& error, std::size_t blocks, std::size_t of, const char* did);

}  // namespace cachalot::client
