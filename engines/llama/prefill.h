// One prompt on its way into a sequence: from the sequence's own beginning, the host cache, the pool, another process, by
// computing.
//
//   Prefill prefill(context, cache, seq, tokens, kept_tokens);
//   for (;;) {
//     Result<Prefill::State> state = prefill.step();      // one chunk at most: other slots get a turn
//     if (!state) return state.error();
//     if (*state == Prefill::State::kDone) break;         // llama_get_logits_ith(context, -1) is the last token's
//     if (*state == Prefill::State::kWaiting) nap();      // another process computes the next block
//   }
//
// Prompts are computed in chunks that begin at multiples of block_tokens and end there or with the
// prompt, one llama_decode() a chunk. llama.cpp's kernels round differently for different shapes of a
// batch; by this rule every block is computed in one shape, on any engine and whatever was there
// before, so that all logits are the same to the bit with the pool and without it.
//
// Single flight: an engine that computes blocks holds a lock on each that its machine sees (OpaqueClient::Claims). An engine that
// needs a block that is being computed elsewhere takes it from the pool when it comes, and waits for it
// no longer than flight_wait_ns in all. No engine waits while it holds a lock.
//
// @threads  that of llama_decode(); one Prefill a sequence at a time
#pragma once

#include <cachalot/result.h>
#include <llama.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "prompt_cache.h"

namespace cachalot::llama {

class Prefill {
 public:
  enum class State { kMore, kWaiting, kDone };

  struct Report {
    std::size_t prompt_tokens = 0;
    std::size_t kept_tokens = 0;         // were in the sequence
    std::size_t host_tokens = 0;         // came from the host cache
    std::size_t loaded_tokens = 0;       // came from the pool
    std::size_t transferred_tokens = 0;  // came from the process of take_over()
    std::size_t computed_tokens = 0;     // were computed here
    std::size_t stored_blocks = 0;       // of these, published
    std::uint64_t load_ns = 0, compute_ns = 0, store_ns = 0;
    std::uint64_t wait_ns = 0;           // for another process's blocks
    std::uint64_t transfer_wait_ns = 0;  // for those of take_over()
    std::uint64_t storage_wait_ns =
        0;                           // for blocks from the storage behind the pool, in this object
    std::size_t storage_tokens = 0;  // of those loaded: storage had brought them for this prompt
    std::size_t unused_storage_tokens = 0;  // asked of storage, and computed before they came
  };

  // @param cache        null: without a pool
  // @param block_tokens the chunk; of the cache, if there is one
  // @param kept_tokens  tokens[0, kept_tokens) lie in `seq` already. Whole blocks of it are used, and
  //                     must have been computed by a Prefill; the rest of the sequence is removed.
  Prefill(llama_context* context, PromptCache* cache, llama_seq_id seq,
          std::vector<llama_token> tokens, std::size_t kept_tokens = 0,
          std::uint32_t block_tokens = 64);
  ~Prefill();
  Prefill(Prefill&&) noexcept;
  Prefill& operator=(Prefill&&) noexcept;

  // What PromptCache::ask_storage() answered when the prompt arrived. Without it, the first step asks.
  void expect(const StoredBlocks& stored);

  // Takes what the sequence, the host cache and the pool do not have from another process. The first step asks it.
  // Nothing without a handover of the cache.
  void take_over(const PromptReference& reference);

  // For whole blocks whose last token's logits are not needed: all of them may come from the pool. And
  // after an error the sequence holds what it holds.
  void only_fill();

  // Does the next piece of work; at least the last token is always computed.
  // @errors kInvalidArgument: an empty prompt, one that does not fit the context, a token out of range;
  //         kNoSpace: no room in the context's KV cache; kCancelled: by its abort callback; kInternal.
  //         After an error the sequence is empty.
  Result<State> step();
  // All of it; naps while it waits.
  Status run();

  const Report& report() const;
  // Leading tokens of the sequence that a later Prefill may keep: whole blocks.
  std::size_t keepable_tokens() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace cachalot::llama
