// The name of a block: 128 bits that stand for its tokens and for everything before them.
//
// The text form is 32 hexadecimal digits, `high` first: the first 16 bytes of a digest in the order
// in which every tool prints them.
#pragma once

#include <cachalot/result.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

namespace cachalot::index {

struct BlockHash {
  std::uint64_t low = 0;
  std::uint64_t high = 0;

  friend bool operator==(const BlockHash&, const BlockHash&) = default;
};
static_assert(sizeof(BlockHash) == 16);

// 32 lower-case hexadecimal digits.
std::string to_hex(const BlockHash& hash);

// @errors kInvalidArgument: not exactly 32 hexadecimal digits, either case
Result<BlockHash> parse_block_hash(std::string_view text);

// The namespace that a fingerprint names (model and weights, dtype, layout, ranks, hash algorithm,
// engine salt, tenant): blocks of different fingerprints never share a hash.
struct NamespaceId {
  std::uint64_t seed = 0;  // XXH3-64 of the text: starts every chain of hashes of the namespace
  BlockHash digest;  // SHA-256 of the text, first 16 bytes: how a pool tells fingerprints apart

  friend bool operator==(const NamespaceId&, const NamespaceId&) = default;
};

// @threads any
// @cost    about a microsecond and an allocation: for attaching, not for each block
NamespaceId make_namespace(std::string_view fingerprint);

}  // namespace cachalot::index

// The bits are already a hash.
template <>
struct std::hash<cachalot::index::BlockHash> {
  std::size_t operator()(const cachalot::index::BlockHash& block) const noexcept {
    return block.low;
  }
};
