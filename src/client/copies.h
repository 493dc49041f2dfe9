// Whole calls on paged caches: look up, copy, validate; reserve, copy, commit.
#pragma once

#include <cachalot/client.h>

#include <atomic>
#include <vector>

#include "client/cache_table.h"
#include "client/counters.h"
#include "client/session.h"

namespace cachalot::client {

// What a call works with; outlives it.
struct Call {
  Session& session;
  Counters& counters;
  RegisteredCache& cache;
  std::span<const BlockHash> hashes;
  std::span<const PageId> pages;
  Deadline deadline;
  CudaStream stream = nullptr;  // of a GPU's cache
  const std::atomic<bool>* cancelled = nullptr;
  StreamBehind* behind = nullptr;  // of a GPU's cache: a stream of ours instead, for a worker

  // As many pages as the blocks have: before either of them is read. @errors kInvalidArgument
  Status check_counts() const;
  // Sizes agree, pages exist, this process may. @errors kInvalidArgument, kUnsupported
  Status check() const;
  // No page twice, for who writes into them. @errors kInvalidArgument @cost a few ns a page, in any order
  Status check_pages_differ() const;
  // @errors kTimeout, kCancelled
  Status check_time(const char* what) const;
  // On its stream. @errors as RegisteredCache's
  Status gather(std::span<const kv::BlockCopy> blocks) const;
  Status scatter(std::span<const kv::BlockCopy> blocks, kv::LayerRange layers) const;
  std::span<const PageId> pages_of(std::size_t block) const {
    return pages.subspan(block * cache.pages_per_block(), cache.pages_per_block());
  }
};

// The extents of blocks, in one list.
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

// A hit that is being read: what was found, and how far it is still right.
struct Hit {
  pool::KeeperView view;
  std::vector<pool::Found> found;
};
// `counters`: null where it is nobody's question what hit, as for a store.
Hit look_up(Session& session, Counters* counters, std::span<const BlockHash> hashes,
            std::uint64_t block_bytes);

// See Client. `tokens`: of each block, or empty.
Result<std::size_t> load(const Call& call, kv::LayerRange layers,
                         std::span<const std::span<const TokenRange>> tokens);
Result<Stored> store(const Call& call, const BlockHash* parent);

// What becomes of blocks that a copy failed to fill.
void end_failed_copies(Session& session, pool::Reservation reservation, const Error& error);

// What a keeper's verdict means to who stored.
std::optional<Code> reason_of(pool::Verdict verdict);

// Takes the verdicts of consecutive blocks into a result. @return how many leading ones are in the pool
std::size_t take_verdicts(std::span<const pool::Verdict> verdicts, Stored& stored);

}  // namespace cachalot::client
