// Counts prompts from an engine's calls, each prompt once: which blocks it asked for, and which of them it used.
//
//   lookup, prefetch  ask for a prompt's blocks. Asked for again before a load or a store: the same prompt
//   load              belongs to the last prompt that asked for its blocks, among others perhaps, and loaded neither the first
//                     one nor later ones. If there is none, it is another prompt's: an equal one's, or one of these blocks
//   store             of a prompt's last block: the prompt has ended
//
// Hashes are chained, so equal last blocks mean equal prompts.
//
// @threads any
// @cost    lookup: a copy of its hashes; load, store: compares hashes, most often with those of one prompt
#pragma once

#include <cachalot/client.h>

#include <cstddef>
#include <mutex>
#include <span>
#include <utility>
#include <vector>

#include "client/hit_rate/counters.h"

namespace cachalot::client {

class PromptCounts {
 public:
  // @param counters   outlive it
  // @param is_active  false: only count() counts
  PromptCounts(Counters& counters, bool is_active) : counters_(counters), is_active_(is_active) {}

  void ask(std::span<const BlockHash> hashes);
  // @param found  what a prefetch found first
  void ask(std::span<const BlockHash> hashes, const Prefetched& found);

  // A load that has begun.
  struct Load {
    std::uint64_t prompt = 0;  // its number; 0: none is remembered
    std::size_t first = 0;     // in the prompt
    std::size_t next_before = 0;
    std::size_t stored_first = 0, stored_end = 0;  // blocks of the load that storage brought
  };
  Load begin_load(std::span<const BlockHash> hashes);
  // @param blocks  leading ones that were loaded and are valid
  void end_load(const Load& load, std::size_t blocks);
  // Calls `load`, which returns how many blocks it has loaded, as Client::load does.
  template <class F>
  Result<std::size_t> load(std::span<const BlockHash> hashes, F&& load) {
    const Load begun = begin_load(hashes);
    Result<std::size_t> loaded = std::forward<F>(load)();
    if (loaded) {
      end_load(begun, *loaded);
    } else if (loaded.error().code == Code::kTimeout || loaded.error().code == Code::kCancelled) {
      end_load(begun, static_cast<std::size_t>(loaded.error().detail));
    }
    return loaded;
  }

  void store(std::span<const BlockHash> hashes);

  // A prompt that the caller has counted. @errors as Client::count_prompt
  Status count(const PromptBlocks& prompt);

 private:
  struct Prompt {
    std::uint64_t number = 0;
    std::vector<BlockHash> hashes;
    // One after the block where the last load of any block began; 0: nothing was loaded.
    std::size_t next = 0;
    std::size_t stored_first = 0, stored_end = 0;  // blocks that storage brings
  };
  static constexpr std::size_t kMostPrompts = 64;

  Prompt& find_or_ask(std::span<const BlockHash> hashes);
  void count_asked(std::size_t blocks);
  static Load begin(Prompt& prompt, std::size_t first);

  Counters& counters_;
  const bool is_active_;
  std::mutex mutex_;
  // Under the lock:
  std::vector<Prompt> prompts_;  // the newest one is the last
  std::uint64_t last_number_ = 0;
};

}  // namespace cachalot::client
