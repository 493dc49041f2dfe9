// Whole calls on paged caches: look up, copy, validate; reserve, copy, commit.
#pragma once

#include <cachalot/client.h>

#include <atomic>
#include <vector>

#include "client/cache_table.h"
#include "client/counters.h"
#include "client/session.h"

namespace cachalot::client {

// The inputs of one call. All referenced objects outlive it.
struct Call {
  Session& session;
  Counters& counters;
  RegisteredCache& cache;
  std::span<const BlockHash> hashes;
  std::span<const PageId> pages;
  Deadline deadline;
  CudaStream stream = nullptr;  // GPU cache only
  const std::atomic<bool>* cancelled = nullptr;
  StreamBehind* behind = nullptr;  // asynchronous call on a GPU cache: used instead of `stream`

  // Checks the number of pages, before pages or hashes are read. @errors kInvalidArgument
  Status check_counts() const;
  // Checks sizes, page ids and the process. @errors kInvalidArgument, kUnsupported
  Status check() const;
  // Rejects repeated pages, for calls that write pages.
  // @errors kInvalidArgument
  // @cost   a few ns per page, in any order
  Status check_pages_differ() const;
  // @errors kTimeout, kCancelled
  Status check_time(const char* what) const;
  // Copy on the call's stream. @errors as RegisteredCache
  Status gather(std::span<const kv::BlockCopy> blocks) const;
  Status scatter(std::span<const kv::BlockCopy> blocks, kv::LayerRange layers) const;
  std::span<const PageId> pages_of(std::size_t block) const {
    return pages.subspan(block * cache.pages_per_block(), cache.pages_per_block());
  }
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

  std::span<const pool::Found> found() const { return read.found(); }
};
// `counters`: null if hits are not counted (stores).
Hit look_up(Session& session, Counters* counters, std::span<const BlockHash> hashes,
            std::uint64_t block_bytes);

// See Client. `tokens`: the ranges of each block; empty: whole blocks.
Result<std::size_t> load(const Call& call, kv::LayerRange layers,
                         std::span<const std::span<const TokenRange>> tokens);
Result<Stored> store(const Call& call, const BlockHash* parent);

// Maps the keeper's verdict to the result of a store.
std::optional<Code> reason_of(pool::Verdict verdict);

// Adds the verdicts of consecutive blocks to a result.
// @return how many leading blocks are in the pool
std::size_t take_verdicts(std::span<const pool::Verdict> verdicts, Stored& stored);

}  // namespace cachalot::client
