// A context of a program that knows nothing of pools: its prompts are taken from the pool and put there.
//
// The program hands over batches as it likes. What of them are prompts is cut at multiples of the block:
// whole blocks are loaded, or computed one by one and stored; the rest of the prompt goes, together with
// what else was in the batch, into one batch of its own. So outputs lie at other places than the program
// thinks, and output_index() tells where.
//
// @threads  one at a time, as llama_decode()
#pragma once

#include <cachalot/result.h>
#include <llama.h>

#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "../prompt_cache.h"
#include "history.h"

namespace cachalot::llama {

// One token of a batch.
struct Entry {
  llama_token token = LLAMA_TOKEN_NULL;
  llama_pos position = -1;
  std::vector<llama_seq_id> sequences;
  bool is_output = false;
  bool is_plain = true;  // a token at one position, and no embedding
};

class SharedContext {
 public:
  // @param sequences  that the program uses: 0 to sequences - 1; one more is ours
  // @errors as PromptCache::attach
  static Result<std::unique_ptr<SharedContext>> open(llama_context* context,
                                                     std::uint32_t sequences,
                                                     const PromptCacheOptions& options,
                                                     bool is_verbose);

  // Does what the batch asks for. @param as_given  decodes it as it is. @return as llama_decode
  std::int32_t decode(std::span<const Entry> batch, const std::function<std::int32_t()>& as_given);

  // Where the output is that the program knows as that of entry `index` of its last batch.
  std::int32_t output_index(std::int32_t index) const;

  // What the program does to its sequences; `sequence` < 0: to all.
  void removed(llama_seq_id sequence, llama_pos from, llama_pos to);
  void copied(llama_seq_id from, llama_seq_id to, llama_pos first, llama_pos last);
  void kept_only(llama_seq_id sequence);
  void changed(llama_seq_id sequence);  // in ways that are not followed
  // Tokens have other positions now: of all sequences that share cells with this one, as after a copy.
  void shifted(llama_seq_id sequence);
  void cleared();
  // A model of experts computes with all of them meanwhile: what is decoded is no KV of its prompts.
  void set_warmup(bool is_on) { is_warmup_ = is_on; }
  // Something is in use on which blocks depend: nothing is shared from now on.
  void stop(const char* why);

  std::uint32_t sequences() const { return static_cast<std::uint32_t>(histories_.size()); }
  const PromptCacheStatistics& statistics() const { return cache_->statistics(); }

 private:
  // The entries of a batch that carry on one sequence's prompt.
  struct Prompt {
    llama_seq_id sequence;
    std::size_t first_entry, entries;
    std::size_t before;               // tokens that the sequence held
    std::vector<llama_token> tokens;  // all of it, with what was there before
    std::size_t base = 0;             // tokens that it holds when the rest is decoded
    bool has_output = false;
  };

  SharedContext(llama_context* context, std::uint32_t sequences, std::unique_ptr<PromptCache> cache,
                bool is_verbose);

  std::vector<Prompt> prompts_of(std::span<const Entry> batch) const;
  std::int32_t fill(Prompt& prompt);
  std::int32_t decode_rest(std::span<const Entry> batch, std::span<const Prompt> prompts);
  std::int32_t decode_tokens(std::span<const llama_token> tokens, std::size_t position,
                             llama_seq_id sequence);
  std::int32_t restore(std::span<const Prompt> prompts, std::int32_t status);
  void note(std::span<const Entry> batch, std::span<const Prompt> prompts);

  llama_context* context_;
  llama_memory_t memory_;
  std::unique_ptr<PromptCache> cache_;
  std::vector<History> histories_;
  std::vector<std::int32_t> places_;  // of the last batch's entries; empty: where they were
  bool is_verbose_;
  bool is_stopped_ = false, is_warmup_ = false;
  bool shares_cells_ = false;  // sequences have cells in common, perhaps
};

// One line on stderr.
[[gnu::format(printf, 1, 2)]] void say(const char* format, ...);

}  // namespace cachalot::llama
