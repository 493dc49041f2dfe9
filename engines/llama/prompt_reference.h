// What a proxy carries from the process that has computed a prompt to the one that takes its KV over. Needs no llama.h.
#pragma once

#include <cachalot/hash.h>
#include <cachalot/transfer.h>

#include <cstdint>
#include <string>

namespace cachalot::llama {

// What two processes must have in common, so that one can use the blocks of the other.
struct BlockIdentity {
  std::string model;     // SHA-256 of its files
  std::string kv_types;  // of keys and values, "f16/f16"
  std::uint32_t block_tokens = 0;
  std::string fingerprint;  // SHA-256 of PromptCache::fingerprint(), which has the salt
};

struct PromptReference {
  KvReference kv;  // the first tokens of the prompt, in whole blocks
  BlockIdentity identity;
  BlockHash last_block;  // of these tokens: it stands for all of them
};

}  // namespace cachalot::llama
