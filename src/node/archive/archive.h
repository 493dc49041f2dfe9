// The storage behind a pool: what is evicted from the pool is not lost, and comes back when a client asks.
//
//   Archive archive(pool, keeper, std::move(store), options);
//   …the keeper runs…
//
// The archive runs in the keeper's process, on threads of its own. To the pool it is a client like others: it
// reads blocks by the rules of reading (R6), and brings blocks back by a grant and a commit. So its death, and every
// stall of the storage, is the death or the stall of a client: the keeper needs no state for it.
//
//   Archiver   hears what the keeper publishes, and writes it to a store by the write policy
//   Sources    all stores as one
//   Finder     asks a store that other hosts write, too, for blocks that are not known here
//   Fetcher    brings chains back into the pool, in order, each block after its seal has matched
//
// Invariants
//   1. The keeper's thread never waits for storage. Bounded queues lie in between; what does not fit is counted.
//   2. A block is published again only if its seal, its length, its hash, its namespace and its parent agree.
//
// @threads one; answer() is called by the keeper's
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <memory>
#include <vector>

#include "node/archive/archive_options.h"
#include "node/archive/archiver.h"
#include "node/archive/fetcher.h"
#include "node/archive/finder.h"
#include "pool/keeper/storage_desk.h"
#include "pool/pool.h"
#include "storage/store.h"

namespace cachalot::node {

class Archive final : public pool::StorageDesk {
 public:
  // Observes the keeper, which does not run meanwhile, as in the destructor. All outlive it.
  // @param stores  at least one; where a block is in several: sources.h. Those that are written get all blocks
  Archive(pool::Pool& pool, pool::Keeper& keeper,
          std::vector<std::unique_ptr<storage::Store>> stores, const ArchiveOptions& options);
  Archive(pool::Pool& pool, pool::Keeper& keeper, std::unique_ptr<storage::Store> store,
          const ArchiveOptions& options);
  // Ends its threads; what is queued is not written. Waits for I/O in flight.
  ~Archive() override;
  Archive(const Archive&) = delete;
  Archive& operator=(const Archive&) = delete;

  pool::StorageAnswer answer(const pool::StorageQuestion& question) override;
  pool::StorageState state() override;
  bool has_blocks_of(const BlockHash& space) override { return sources_.has_space(space); }

  // @threads any
  ArchiveCounts counts();
  storage::Store& store(std::size_t i = 0) { return *stores_[i]; }
  std::size_t stores() const { return stores_.size(); }

 private:
  bool is_up();
  std::uint64_t queued() const;
  std::string names() const;

  pool::Keeper& keeper_;
  const std::vector<std::unique_ptr<storage::Store>> stores_;
  Sources sources_;
  const std::uint64_t stuck_after_ns_;
  FetchedBlocks fetched_;
  std::deque<Archiver> archivers_;  // of the stores that are written
  Fetcher fetcher_;
  Finder finder_;
  std::atomic<bool> is_stuck_{false};
};

}  // namespace cachalot::node
