// The prompts of one llama.cpp context, shared through a pool with other processes, and through this process's memory
// with its other contexts.
//
//   Result<std::unique_ptr<PromptCache>> cache = PromptCache::attach(context, options);
//   Prefill prefill(context, cache->get(), seq, tokens);   // engines/llama/prefill.h
//
// A block is block_tokens tokens of a prompt from position 0 on, as llama.cpp's own serialised state of
// one sequence (engines/llama/blob_layout.h). It is cut out of a sequence by way of a scratch sequence:
// copying between sequences of a unified cache only tags cells.
//
// Invariants
//   1. No failure of the pool is a failure of the engine: what cannot be loaded is computed, what cannot
//      be stored is not stored, and counted.
//   2. A block is imported only while it is pinned, after its checksum matched and its header said what
//      this context would have written; and counts only if its entry is the same afterwards (R6).
//   3. After every call `seq` holds what it held before and whole blocks behind it, and the scratch
//      sequence nothing.
//
// Blocks go straight between the context's tensors and the pool. Only where a block is not one piece
// of memory (pools of several devices), and for stores into noncoherent pools, they pass a buffer: see
// the design page.
//
// @threads  one at a time: that of llama_decode()
#pragma once

#include <cachalot/hash.h>
#include <cachalot/result.h>
#include <cachalot/tier.h>
#include <llama.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "handover.h"
#include "host_cache.h"
#include "identity.h"
#include "stored_blocks.h"

namespace cachalot::llama {

struct PromptCacheOptions {
  std::vector<std::string> pool;  // its path, or those of all its devices; empty: none
  std::shared_ptr<HostCache>
      host_cache;  // in front of the pool; null: none. Of contexts of one model
  Origin origin;   // of the context
  std::uint32_t block_tokens = 64;
  llama_seq_id scratch_seq = -1;    // for internal use only; default: the last one, n_seq_max - 1
  std::uint32_t host = 0;           // this machine's number in the pool
  bool allow_foreign_pool = false;  // also a pool of another user, as in pool::OpenOptions
  std::uint64_t keeper_timeout_ns = 1'000'000'000;  // of any wait for the keeper
  std::uint64_t retry_ns =
      2'000'000'000;  // after a failure of the keeper nothing is asked of it for so long
  std::uint64_t flight_wait_ns =
      30'000'000'000;  // how long to wait for blocks that others compute; 0: never
  // When a prompt goes on with what has arrived from the storage behind the pool. None: it is never asked.
  std::optional<PrefetchOptions> prefetch = PrefetchOptions();
  std::function<void(const char* message)> on_warning;  // once for each kind of trouble
};

struct PromptCacheStatistics {
  std::uint64_t loaded_blocks = 0, loaded_bytes = 0, load_ns = 0;  // from the pool; load_ns: of all
  std::uint64_t host_blocks = 0;                                   // from the host cache
  std::uint64_t transferred_blocks = 0;                            // from another process
  std::uint64_t stored_blocks = 0, stored_bytes = 0, store_ns = 0;
  std::uint64_t duplicate_blocks = 0;  // another process was faster
  std::uint64_t damaged_blocks = 0;    // checksum or header wrong: computed again
  std::uint64_t replaced_chains = 0;   // of these, dropped with all behind them, and stored again
  std::uint64_t stale_blocks = 0;      // reused while they were imported: computed again
  std::uint64_t unloaded_blocks = 0;   // no room in the context
  std::uint64_t unstored_blocks = 0;   // pool full, keeper away, parent evicted, cells out of order
  std::uint64_t pool_failures = 0;
};

class PromptCache {
 public:
  // Refuses contexts whose state cannot be cut into blocks, with the reason; tries it with one block.
  // The context must be empty and its last sequence free.
  // With neither pool nor host cache it does nothing but refuse.
  // @errors kUnsupported: non-unified cache, recurrent, hybrid or sliding-window model, no flash
  //         attention, …; kInvalidArgument: block_tokens, a block that does not fit the pool's or the
  //         host cache;
  //         kNoKeeper; as opening a pool
  // @cost   reads the model's files once (for their hash) and computes one block
  static Result<std::unique_ptr<PromptCache>> attach(llama_context* context,
                                                     const PromptCacheOptions& options);
  ~PromptCache();
  PromptCache(const PromptCache&) = delete;
  PromptCache& operator=(const PromptCache&) = delete;

  std::uint32_t block_tokens() const;
  std::uint64_t block_bytes() const;
  const std::string& fingerprint() const;
  bool has_pool() const;

  // The names of all whole blocks of a prompt.
  std::vector<BlockHash> hash_tokens(std::span<const llama_token> tokens) const;

  // How many leading blocks are in the pool; 0 without one. @cost about 1.3 lines a block
  std::size_t lookup(std::span<const BlockHash> hashes) const;

  // Asks the storage behind the pool to bring what it has of a prompt's whole blocks into the pool. Call it when the
  // prompt arrives, so that the blocks come while it waits for its turn; Prefill::expect() takes the answer.
  // @return nothing asked: no policy, fewer tokens than the threshold, or a keeper that failed recently
  // @threads any; may wait keeper_timeout_ns
  StoredBlocks ask_storage(std::span<const llama_token> tokens);

  // Waits until storage behind the pool is in use, or so long. @return whether it is. @threads any
  bool wait_for_storage(std::uint64_t timeout_ns);
  // Waits until what was stored is in storage, or so long. @return whether it is. @threads any
  bool flush_to_storage(std::uint64_t timeout_ns);

  // Imports blocks [first, …) into `seq`, which holds the blocks before, and nothing behind them: from the host cache,
  // then from the pool.
  // @return how many of `hashes` the sequence now holds, at least `first`
  std::size_t load(llama_seq_id seq, std::span<const BlockHash> hashes, std::size_t first);

  // Publishes blocks [first, size) of `seq`, which holds them all; those before are published.
  // @return how many of `hashes` are now in the pool, as far as it went
  std::size_t store(llama_seq_id seq, std::span<const BlockHash> hashes, std::size_t first);

  // Puts blocks [first, size) of `seq`, which holds them all, into the host cache; those before are there.
  // @return how many of `hashes` are now in the host cache, as far as it went
  std::size_t keep(llama_seq_id seq, std::span<const BlockHash> hashes, std::size_t first);

  // From here on blocks also come from processes that share no pool with this one, and go to them.
  // @errors as Handover::open
  Result<std::shared_ptr<Handover>> open_handover(const HandoverOptions& options) const;
  // @param handover  of a context of the same model and options
  void set_handover(std::shared_ptr<Handover> handover);
  // Offers the prompt that `seq` holds, all whole blocks before its last token.
  // @return nothing: no handover, or as Handover::offer
  std::optional<PromptReference> offer(llama_seq_id seq, std::span<const llama_token> tokens);

  const PromptCacheStatistics& statistics() const;

 private:
  friend class Prefill;
  struct Impl;
  explicit PromptCache(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace cachalot::llama
