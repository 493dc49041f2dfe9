// Names of blocks (cachalot/hash.h) as text, and namespaces.
#pragma once

#include <cachalot/hash.h>
#include <cachalot/result.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "base/rng.h"

namespace cachalot::block_hash {

using cachalot::BlockHash;

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

// The name of one head group of a block (KvGeometry::head_group): the block's, xor a constant of the group. So names
// of groups are as far apart as those of blocks. That of group 0 is the block's own.
constexpr BlockHash hash_head_group(const BlockHash& block, std::uint32_t group) {
  return {block.low ^ base::mix64(group), block.high ^ base::mix64(std::uint64_t{group} << 32)};
}

// The name of an object that is not a chain of tokens but has a key of its own: XXH3-128 of the key,
// from another seed than the namespace's chains.
BlockHash hash_key(const NamespaceId& space, std::string_view key);

}  // namespace cachalot::block_hash
