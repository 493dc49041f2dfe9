// Whole calls on paged caches.
#pragma once

#include "client/cache_table.h"
#include "client/chain_store.h"

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
  std::span<const std::uint32_t> tokens = {};  // store only: of all blocks
  kv::StreamBehind* behind = nullptr;  // asynchronous call on a GPU cache: used instead of `stream`

  // Checks the number of pages, before pages or hashes are read. @errors kInvalidArgument
  Status check_counts() const;
  // Checks sizes, page ids and the process. @errors kInvalidArgument, kUnsupported
  Status check() const;
  // Store only. @errors kInvalidArgument: other than block_tokens for each block
  Status check_tokens() const;
  // Rejects repeated pages, for calls that write pages.
  // @errors kInvalidArgument
  // @cost   a few ns per page, in any order
  Status check_pages_differ() const;
  // Copy on the call's stream. @errors as RegisteredCache
  Status gather(const GroupCopies& copies) const;
  Status scatter(const GroupCopies& copies, kv::LayerRange layers) const;
  // The same call on these blocks of the pool.
  BlockCall on_pool(std::span<const BlockHash> names) const {
    return {session, counters, names, cache.cache().geometry().block_bytes(), deadline, cancelled};
  }
  std::span<const PageId> pages_of(std::size_t block) const {
    return pages.subspan(block * cache.pages_per_block(), cache.pages_per_block());
  }
};

// See Client. `tokens`: the ranges of each block; empty: whole blocks.
Result<std::size_t> load(const Call& call, kv::LayerRange layers,
                         std::span<const std::span<const TokenRange>> tokens);
// `tokens`: of each layer and head of the rank.
Result<std::size_t> load_head_tokens(const Call& call, kv::LayerRange layers,
                                     std::span<const std::span<const std::uint32_t>> tokens,
                                     TokenPlace place);
Result<Stored> store(const Call& call, const BlockHash* parent);

}  // namespace cachalot::client
