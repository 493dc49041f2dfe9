// Writes published blocks to the store, by the write policy, on a thread of its own.
//
// It follows the keeper through a queue of changes. When changes were lost it reads the directory, and queues what
// is published and not stored. So it does, step by step, when storage comes back that had failed or lost blocks.
//
// Invariants
//   1. A block is queued after its parent, so that the store has the parent when it comes.
//   2. A payload is sealed before its entry is read again (R6), and written only if the entry is unchanged.
//
// @threads the thread is its own; queued(), the counters: any
#pragma once

#include <atomic>
#include <deque>
#include <optional>
#include <span>
#include <thread>
#include <vector>

#include "base/clock.h"
#include "eviction/leaf_lru.h"
#include "node/archive/archive_options.h"
#include "node/archive/fetched_blocks.h"
#include "node/changes/change_queue.h"
#include "node/changes/mirror.h"
#include "storage/store.h"

namespace cachalot::node {

class Archiver {
 public:
  // All outlive it.
  Archiver(const pool::Access& access, storage::Store& store, FetchedBlocks& fetched,
           const ArchiveOptions& options);
  ~Archiver();

  pool::BlockObserver& observer() { return changes_; }
  // Blocks that wait to be written, and changes that were not looked at.
  std::uint64_t queued() const {
    return changes_.waiting() + waiting_.load(std::memory_order_acquire);
  }
  // When the thread last finished a round of its work.
  std::uint64_t turn_ns() const { return turn_ns_.load(std::memory_order_relaxed); }
  std::uint64_t skipped() const { return skipped_.load(std::memory_order_relaxed); }
  std::uint64_t lost() const { return lost_.load(std::memory_order_relaxed); }
  std::uint64_t unused() const { return unused_.load(std::memory_order_relaxed); }

 private:
  // What the archiver knows of a published block beside the mirror.
  struct BlockState {
    bool is_queued = false;
    bool is_path_queued = false;  // with all of its prefix that is not stored
    bool is_unused = false;       // fetched, and not used since
    std::uint8_t uses = 0;
  };
  struct Queued {
    std::uint32_t block, generation;
  };

  void run();
  // @return false: there were none
  bool take_changes();
  void begin_anew();
  void apply(const Change& change);
  void on_published(const pool::PublishedBlock& block);
  void on_removed(std::uint32_t block, const BlockHash& hash);
  void on_touched(std::uint32_t block);
  // A block and those of its prefix that are to be stored and are not, parents first.
  std::vector<std::uint32_t> missing_path(std::uint32_t block);
  void queue_path(std::span<const std::uint32_t> path);
  void queue(std::uint32_t block);
  void keep_reserve();
  void catch_up();
  bool begin_look();
  // The next blocks of one chain. @return false: none wait
  bool next_run(std::vector<std::uint32_t>& run);
  void write(const std::vector<std::uint32_t>& run);
  std::optional<storage::ObjectKey> key_of(std::uint32_t block);

  const pool::Access& access_;
  storage::Store& store_;
  FetchedBlocks& fetched_;
  const ArchiveOptions options_;
  ChangeQueue changes_;
  // Of the thread:
  Mirror mirror_;
  bool is_current_ = false;         // the mirror: changes were not lost since it was read
  std::vector<BlockState> states_;  // by block
  std::vector<BlockHash> spaces_;   // digests; namespace id - 1
  eviction::LeafLru order_;         // kBack: the published blocks, by use
  std::uint32_t published_since_reserve_ = 0;
  std::deque<Queued> queue_;
  // Storage may lack published blocks: all are looked at, from `look_at_` on; none: not now.
  bool is_behind_ = false;
  std::optional<std::uint32_t> look_at_;
  std::uint32_t cut_at_ =
      pool::kNoBlock;       // the first block of a path that was too long for the queue
  std::uint64_t gaps_ = 0;  // of the store, as seen
  std::uint64_t next_look_ns_ = 0, look_pause_ns_ = 0;

  std::atomic<std::uint64_t> waiting_{0};  // queue_, and the run in work
  std::atomic<std::uint64_t> turn_ns_{base::SteadyClock::read()};
  std::atomic<std::uint64_t> skipped_{0}, lost_{0}, unused_{0};
  std::atomic<bool> stop_{false};
  std::thread thread_;
};

}  // namespace cachalot::node
