// The name of a block: 128 bits that stand for its tokens and for everything before them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>

namespace cachalot {

// The text form is 32 hexadecimal digits, `high` first: the first 16 bytes of a digest in the order
// in which every tool prints them.
struct BlockHash {
  std::uint64_t low = 0;
  std::uint64_t high = 0;

  friend bool operator==(const BlockHash&, const BlockHash&) = default;
};
static_assert(sizeof(BlockHash) == 16);

// How the hash of a block follows from the one before it and its own tokens.
//   kXxh3         XXH3-128, seeded with the namespace. A stranger who may choose prompts can make it
//                 collide: between tenants take a secret salt, or SHA-256
//   kSha256Cbor   vLLM's, bit for bit
//   kXxhashCbor   vLLM's, bit for bit
enum class HashAlgorithm { kXxh3, kSha256Cbor, kXxhashCbor };

}  // namespace cachalot

// The bits are already a hash.
template <>
struct std::hash<cachalot::BlockHash> {
  std::size_t operator()(const cachalot::BlockHash& block) const noexcept { return block.low; }
};
