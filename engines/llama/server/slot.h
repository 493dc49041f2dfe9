// One conversation at a time: a context, the tokens whose KV it still holds, and the request that it
// works on.
//
// @threads the decode thread's
#pragma once

#include <cachalot/result.h>
#include <llama.h>

#include <memory>
#include <optional>
#include <vector>

#include "../prefill.h"
#include "../prompt_cache.h"
#include "job.h"
#include "model.h"
#include "slot_choice.h"
#include "text_stream.h"

namespace cachalot::llama {

struct SlotOptions {
  std::uint32_t context_tokens = 4096;
  std::uint32_t block_tokens = 64;
  std::int32_t threads = 1;
  ggml_type kv_type = GGML_TYPE_F16;
  std::optional<PromptCacheOptions> cache;  // its origin's context is filled in here
};

struct FreeContext {
  void operator()(llama_context* context) const { llama_free(context); }
};
using Context = std::unique_ptr<llama_context, FreeContext>;

// What the keys and values of `slots` contexts take, before any is made: libllama touches all of it, and
// the kernel ends the process where there is no such memory.
// @errors kNoSpace: more than this process can have
Status check_memory(const Model& model, const SlotOptions& options, std::size_t slots);

// What a block takes in a pool, for `cachalot serve --block-bytes`.
// @errors as Slot::make; kUnsupported: a model whose prompts cannot be shared, with the reason
Result<std::uint64_t> block_bytes_of(const Model& model, const SlotOptions& options);

class Slot {
 public:
  // @errors kNoSpace: no memory for the context; as PromptCache::attach
  static Result<Slot> make(const Model& model, const SlotOptions& options);

  bool is_busy() const { return job_ != nullptr; }
  SlotState state() const { return {is_busy(), last_used_, cached_}; }
  std::uint32_t block_tokens() const { return block_tokens_; }
  std::uint32_t context_tokens() const { return llama_n_ctx(context_.get()); }

  // As PromptCache::ask_storage; nothing without a pool. @threads any
  StoredBlocks ask_storage(std::span<const Token> tokens) {
    return cache_ ? cache_->ask_storage(tokens) : StoredBlocks();
  }

  // Null: without pool and host cache.
  PromptCache* cache() { return cache_.get(); }
  // Null: without a pool.
  const PromptCacheStatistics* pool_statistics() const {
    return cache_ && cache_->has_pool() ? &cache_->statistics() : nullptr;
  }

  // @param number  counts requests
  void begin(std::shared_ptr<Job> job, std::uint64_t number);
  // One chunk of the prompt, or one token. @return false: it waits for another process
  bool step();
  // Ends the request, if there is one.
  void fail(const Error& error);

 private:
  struct FreeSampler {
    void operator()(llama_sampler* sampler) const { llama_sampler_free(sampler); }
  };

  Slot(const Model& model, Context context, std::uint32_t block_tokens)
      : model_(&model), context_(std::move(context)), block_tokens_(block_tokens) {}

  bool step_prompt();
  void keep_prompt();
  void offer_prompt();
  void end_prompt();
  void decode_last();
  void sample();
  void finish(Finish reason);
  void end();

  const Model* model_;
  Context context_;
  std::unique_ptr<PromptCache>
      cache_;  // null: without pool and host cache; goes before the context
  std::uint32_t block_tokens_;
  std::uint64_t last_used_ = 0;
  std::vector<Token> cached_;

  // Of the request at work.
  std::shared_ptr<Job> job_;
  std::optional<Prefill> prefill_;  // until the prompt is computed
  std::unique_ptr<llama_sampler, FreeSampler> sampler_;
  std::optional<TextStream> text_;
  Token last_ = 0;
  std::int32_t position_ = 0;  // of last_
};

}  // namespace cachalot::llama
