// Whether a context's prompts can be shared, and what its blocks look like: found out by trying.
#pragma once

#include <cachalot/result.h>
#include <llama.h>

#include <cstdint>

#include "blob_layout.h"

namespace cachalot::llama {

// Says no to what is known not to work; then computes one block, takes it out by way of `scratch`, puts
// it in again and takes it out once more: the same bytes, or the context is refused.
// The context must hold nothing, and holds nothing afterwards.
// @errors kUnsupported: with the reason; kInvalidArgument: block_tokens does not fit the context
// @cost   one decode of block_tokens tokens
Result<BlobLayout> try_context(llama_context* context, const llama_context_params& params,
                               llama_seq_id scratch, std::uint32_t block_tokens);

}  // namespace cachalot::llama
