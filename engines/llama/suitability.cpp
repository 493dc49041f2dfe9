#include "suitability.h"

#include <algorithm>
#include <cstring>
#include <memory>
#include <vector>

namespace cachalot::llama {
namespace {

Error refused(const char* why) {
  return Error::make(Code::kUnsupported, "this context cannot share its prompts: %s", why);
}

Status check_model(const llama_model* model) {
  if (llama_model_is_recurrent(model))
    return refused("the model is recurrent: its state does not consist of tokens");
  if (llama_model_is_hybrid(model))
    return refused("the model is partly recurrent: its state does not consist of tokens");
  if (llama_model_is_diffusion(model)) return refused("the model is a diffusion model");
  if (llama_model_has_encoder(model) || !llama_model_has_decoder(model))
    return refused("the model is not a decoder");
  if (llama_model_n_swa(model) > 0)
    return refused("the model has sliding-window attention: old tokens leave its cache");
  switch (llama_model_rope_type(model)) {
    case LLAMA_ROPE_TYPE_NONE:
    case LLAMA_ROPE_TYPE_NORM:
    case LLAMA_ROPE_TYPE_NEOX:
      return {};
    default:
      return refused("its positions have several parts (M-RoPE)");
  }
}

Status check_context(const llama_context* context, const llama_context_params& params,
                     llama_seq_id scratch, std::uint32_t block_tokens) {
  if (!params.kv_unified && llama_n_seq_max(context) > 1) {
    return refused(
        "its KV cache is not unified (kv_unified): sequences cannot be cut by way of another");
  }
  if (params.attention_type == LLAMA_ATTENTION_TYPE_NON_CAUSAL)
    return refused("its attention is not causal");
  if (params.embeddings) return refused("it computes embeddings");
  // It would miss the tokens of blocks that are loaded, as llama-imatrix must not.
  if (params.cb_eval != nullptr) return refused("a callback sees all that it computes (cb_eval)");
  if (params.ctx_type != LLAMA_CONTEXT_TYPE_DEFAULT || params.ctx_other != nullptr) {
    return refused("it serves another context");
  }
  if (params.flash_attn_type == LLAMA_FLASH_ATTN_TYPE_DISABLED)
    return refused("V is transposed: enable flash attention");
  if (scratch < 1 || static_cast<std::uint32_t>(scratch) >= llama_n_seq_max(context)) {
    return refused(
        "it has no spare sequence: n_seq_max must be one more than the sequences in use");
  }
  if (block_tokens < 2 || block_tokens > llama_n_ubatch(context) ||
      block_tokens > llama_n_batch(context) || 2 * block_tokens > llama_n_ctx(context)) {
    return Error::make(
        Code::kInvalidArgument,
        "a block of %u tokens is not within 2 to n_ubatch = %u, n_batch = %u and n_ctx / 2 = %u",
        block_tokens, llama_n_ubatch(context), llama_n_batch(context), llama_n_ctx(context) / 2);
  }
  return {};
}

Status decode_block(llama_context* context, std::uint32_t tokens) {
  struct Freed {
    llama_batch batch;
    ~Freed() { llama_batch_free(batch); }
  } freed{llama_batch_init(static_cast<std::int32_t>(tokens), 0, 1)};
  llama_batch& batch = freed.batch;
  const std::int32_t vocabulary =
      llama_vocab_n_tokens(llama_model_get_vocab(llama_get_model(context)));
  batch.n_tokens = static_cast<std::int32_t>(tokens);
  for (std::int32_t i = 0; i < batch.n_tokens; ++i) {
    batch.token[i] = i % vocabulary;
    batch.pos[i] = i;
    batch.n_seq_id[i] = 1;
    batch.seq_id[i][0] = 0;
    batch.logits[i] = i + 1 == batch.n_tokens;
  }
  const std::int32_t status = llama_decode(context, batch);
  if (status == 0) return {};
  return Error::make(Code::kUnsupported,
                     "a block of %u tokens cannot be computed: llama_decode returned %d", tokens,
                     status);
}

std::vector<std::byte> state_of(llama_context* context, llama_seq_id seq) {
  std::vector<std::byte> bytes(llama_state_seq_get_size_ext(context, seq, 0));
  bytes.resize(llama_state_seq_get_data_ext(context, reinterpret_cast<std::uint8_t*>(bytes.data()),
                                            bytes.size(), seq, 0));
  return bytes;
}

Result<BlobLayout> try_block(llama_context* context, llama_seq_id scratch,
                             std::uint32_t block_tokens) {
  const llama_memory_t memory = llama_get_memory(context);
  CACHALOT_TRY(decode_block(context, block_tokens));
  llama_memory_seq_cp(memory, 0, scratch, 0, static_cast<llama_pos>(block_tokens));
  const std::vector<std::byte> first = state_of(context, scratch);
  CACHALOT_TRY_ASSIGN(BlobLayout layout, BlobLayout::learn(first, block_tokens));
  // All of it goes, so that what is taken out again was put in.
  llama_memory_clear(memory, true);
  const std::size_t taken = llama_state_seq_set_data_ext(
      context, reinterpret_cast<const std::uint8_t*>(first.data()), first.size(), scratch, 0);
  if (taken != first.size()) return refused("it does not accept a block that it returned");
  llama_memory_seq_cp(memory, scratch, 0, -1, -1);
  llama_memory_seq_rm(memory, scratch, -1, -1);
  llama_memory_seq_cp(memory, 0, scratch, 0, static_cast<llama_pos>(block_tokens));
  if (state_of(context, scratch) != first) return refused("a block differs after it was restored");
  return layout;
}

}  // namespace

Result<BlobLayout> try_context(llama_context* context, const llama_context_params& params,
                               llama_seq_id scratch, std::uint32_t block_tokens) {
  CACHALOT_TRY(check_model(llama_get_model(context)));
  CACHALOT_TRY(check_context(context, params, scratch, block_tokens));
  const llama_memory_t memory = llama_get_memory(context);
  if (memory == nullptr) return refused("it has no memory");
  // What the parameters said is not what counts: copying part of a sequence between streams would end
  // the process.
  const std::vector<std::byte> empty = state_of(context, scratch);
  if (streams_of(empty) != 1)
    return refused(
        "its KV cache is not unified (kv_unified): sequences cannot be cut by way of another");
  for (llama_seq_id seq = 0; seq <= scratch; ++seq) {
    if (llama_memory_seq_pos_max(memory, seq) >= 0) return refused("it is in use already");
  }
  Result<BlobLayout> layout = try_block(context, scratch, block_tokens);
  llama_memory_clear(memory, true);
  return layout;
}

}  // namespace cachalot::llama
