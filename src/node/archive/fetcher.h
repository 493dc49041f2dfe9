// Brings chains of blocks from the store back into the pool, on a thread of its own, as a client of the pool.
//
// Invariants
//   1. A block is committed after its body had its seal and its parent's name, and after its parent.
//   2. A granted block that was not filled is not committed.
//   3. Nothing is read whose parent is not in the pool: a chain that is longer than the pool ends where it is full.
//
// @threads ask(), is_fetching(), the counters: any
#pragma once

#include <atomic>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <optional>
#include <span>
#include <thread>
#include <unordered_map>
#include <vector>

#include "node/archive/archive_options.h"
#include "node/archive/fetched_blocks.h"
#include "node/archive/pool_payloads.h"
#include "node/archive/sources.h"
#include "pool/pool.h"

namespace cachalot::node {

class Fetcher {
 public:
  // All outlive it.
  Fetcher(pool::Pool& pool, Sources& sources, FetchedBlocks& fetched,
          const ArchiveOptions& options);
  ~Fetcher();

  // Queues the leading blocks of a chain that the store has, and those before them that the pool lacks. Never waits.
  // The same that waits already is not queued twice; the same that is in work is done once more, because what it has brought
  // may have been evicted again.
  void ask(std::uint32_t namespace_id, const BlockHash& space, std::span<const BlockHash> hashes);
  // Whether a chain that ends with one of these blocks is queued or in work.
  bool is_fetching(const BlockHash& space, std::span<const BlockHash> lasts) const;

  std::uint64_t queued() const;
  // When the thread last began a step of its work; nothing: it has none.
  std::optional<std::uint64_t> step_ns() const {
    const std::uint64_t step_ns = step_ns_.load(std::memory_order_relaxed);
    return step_ns == 0 ? std::nullopt : std::optional(step_ns);
  }
  std::uint64_t fetched_blocks() const { return blocks_.load(std::memory_order_relaxed); }
  std::uint64_t fetched_bytes() const { return bytes_.load(std::memory_order_relaxed); }
  std::uint64_t refused() const { return refused_.load(std::memory_order_relaxed); }

 private:
  struct Request {
    std::uint32_t namespace_id;
    BlockHash space;
    std::vector<BlockHash> hashes;
  };
  // Blocks of a chain that are on their way: one batch.
  struct Batch;

  void run();
  void await_request(std::unique_lock<std::mutex>& lock);
  Status attach();
  bool stands_in_pool(const Request& request, std::size_t first);
  std::optional<storage::ObjectHead> head_of(const storage::ObjectKey& key);
  void begin_in_pool(Request& request);
  void fetch(Request request);
  // Fetches the next blocks of a chain. @return how many; 0: no more can be had
  std::size_t fetch_some(const Request& request, std::size_t first);
  std::vector<PoolPayloads::Target> next_targets(const Request& request, std::size_t first) const;
  std::vector<pool::Reservation> reserve(std::size_t blocks);
  std::vector<pool::WrittenBlock> written_blocks(const Request& request, const Batch& batch);
  std::size_t commit(const Request& request, Batch& batch);

  pool::Pool& pool_;
  Sources& sources_;
  FetchedBlocks& fetched_;
  const ArchiveOptions options_;
  std::optional<pool::PoolClient> client_;  // its thread's
  std::uint64_t next_attach_ns_ = 0;
  bool is_told_ = false;  // that it cannot attach

  mutable std::mutex mutex_;  // queue_, asked_; stop_ changes under it
  std::condition_variable wake_;
  std::deque<Request> queue_;
  // Last blocks of queued chains and the one in work; true: that was asked for once more.
  std::unordered_map<storage::ObjectKey, bool> asked_;
  std::optional<storage::ObjectKey> in_work_;
  std::atomic<bool> stop_{false};
  std::atomic<std::uint64_t> step_ns_{0};  // 0: no work
  std::atomic<std::uint64_t> blocks_{0}, bytes_{0}, refused_{0};
  std::thread thread_;
};

}  // namespace cachalot::node
