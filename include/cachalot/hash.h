// The name of a block: a 128-bit hash of its tokens and of all tokens before them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>

namespace cachalot {

// Text form: 32 hexadecimal digits, `high` first. These are the first 16 bytes of a digest in the usual order.
struct BlockHash {
  std::uint64_t low = 0;
  std::uint64_t high = 0;

  friend bool operator==(const BlockHash&, const BlockHash&) = default;
};
static_assert(sizeof(BlockHash) == 16);

// How the hash of a block is computed from the previous block's hash and its own tokens.
//   kXxh3         XXH3-128, seeded with the namespace. An attacker that chooses prompts can construct
//                 collisions: between tenants use a secret salt, or SHA-256
//   kSha256Cbor   the same bits as vLLM's algorithm
//   kXxhashCbor   the same bits as vLLM's algorithm
enum class HashAlgorithm { kXxh3, kSha256Cbor, kXxhashCbor };

}  // namespace cachalot

// Uses the hash bits directly.
template <>
struct std::hash<cachalot::BlockHash> {
  std::size_t operator()(const cachalot::BlockHash& block) const noexcept { return block.low; }
};
