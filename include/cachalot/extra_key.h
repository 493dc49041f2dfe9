// What distinguishes blocks besides their tokens: an adapter, an image, a tenant's salt.
//
// A key is a tuple of texts, bytes and integers, as vLLM 0.32 has it; the first part says what the key is:
//
//   {"lora", name, path}   {"mm", identifier, offset from the start of the block}
//   {"cache_salt", salt}   {"prompt_embeds", SHA-256 of the embeddings}
#pragma once

#include <cstdint>
#include <string>
#include <variant>
#include <vector>

namespace cachalot {

// Text is UTF-8.
using ExtraKeyPart = std::variant<std::string, std::vector<std::uint8_t>, std::int64_t>;
using ExtraKey = std::vector<ExtraKeyPart>;
// Of one block, in vLLM's order: adapter, images, salt, embeddings.
using ExtraKeys = std::vector<ExtraKey>;

}  // namespace cachalot
