// Chained block hashes: the hash of a block is a function of the hash before it and its own ids.
//
// Three algorithms. xxh3_128 is ours, seeded with the namespace; an attacker that chooses prompts
// can make it collide, so between tenants take a secret fingerprint or sha256_cbor. sha256_cbor and
// xxhash_cbor are vLLM's, bit for bit, and know nothing of namespaces: keep those apart by other
// means.
//
// What is hashed by xxh3_128 (XXH3-128 with the namespace's 64-bit seed), little-endian throughout:
//
//   parent        16 bytes, the parent's digest as printed; zero for the first block of a chain
//   ids           4 bytes each (std::uint32_t) or 8 bytes each (std::uint64_t)
//   extra keys    each: u64 number of parts, then each part: u64 kind, and
//                 0 text, 1 bytes: u64 length, the bytes; 2 integer: i64
//   trailer       u64: number of ids | bytes per id << 32 | number of extra keys << 40
//
// The trailer makes the encoding unambiguous: no two inputs share their bytes.
// By sha256_cbor and xxhash_cbor: canonical CBOR (RFC 8949 §4.2.1) of
// [parent digest, [ids], null or [extra keys]], where an extra key is the array of its parts, and
// the digest before the first block is that of the text of PYTHONHASHSEED, or of "vllm-none-hash".
// vLLM before 0.32 encoded extra keys in another way; blocks without them have the same hashes.
#pragma once

#include <cachalot/extra_key.h>
#include <cachalot/result.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "block_hash/block_hash.h"

namespace cachalot::block_hash {

using cachalot::HashAlgorithm;

// "xxh3_128", "sha256_cbor", "xxhash_cbor".
const char* hash_algorithm_name(HashAlgorithm algorithm);

// A whole digest, which is what is chained: 16 bytes, or 32 of SHA-256.
struct Digest {
  std::array<std::uint8_t, 32> bytes{};
  std::uint32_t size_bytes = 16;

  // The first 16 bytes: what a pool stores.
  BlockHash block_hash() const;
  // The last 8 bytes as a big-endian number: vLLM's integer form in KV events.
  std::uint64_t low64() const;
  std::string hex() const;

  friend bool operator==(const Digest&, const Digest&) = default;
};

// @threads one at a time: it reuses a buffer
class BlockHasher {
 public:
  // xxh3_128 for one namespace.
  static BlockHasher xxh3(const NamespaceId& space);
  // vLLM's, as an engine with this PYTHONHASHSEED computes it; "": with none.
  // @errors kInvalidArgument: `algorithm` is none of vLLM's, or is xxhash_cbor without a seed, where vLLM
  //         takes a random one; kUnsupported: no SHA-256 in libcrypto
  static Result<BlockHasher> vllm(HashAlgorithm algorithm, std::string_view python_hash_seed);

  BlockHasher(BlockHasher&&) noexcept;
  BlockHasher& operator=(BlockHasher&&) noexcept;
  ~BlockHasher();

  HashAlgorithm algorithm() const { return algorithm_; }

  // The digest before the first block of every chain.
  const Digest& root() const { return root_; }

  // @shape  ids: those of one block, fewer than 2^32; parent: root() or what next() gave
  // @cost   no allocation once the buffer has grown to the size of a block
  // @source vLLM 0.32, kv_cache_utils.hash_block_tokens, for the CBOR algorithms
  Digest next(const Digest& parent, std::span<const std::uint32_t> ids,
              std::span<const ExtraKey> extra_keys = {});
  Digest next(const Digest& parent, std::span<const std::uint64_t> ids,
              std::span<const ExtraKey> extra_keys = {});

  // Hashes whole blocks of `block_ids` ids from `parent` on, as many as there are in `ids` and fit
  // into `hashes`; returns the digest of the last (parent if none). A partial block is left out.
  // @shape  extra_keys: of the first blocks; later blocks have none
  Digest hash_blocks(const Digest& parent, std::span<const std::uint32_t> ids,
                     std::size_t block_ids, std::span<BlockHash> hashes,
                     std::span<const ExtraKeys> extra_keys = {});

 private:
  class Sha256;

  BlockHasher(HashAlgorithm algorithm, std::uint64_t seed, std::unique_ptr<Sha256> sha256);

  template <class Id>
  Digest hash(const Digest& parent, std::span<const Id> ids, std::span<const ExtraKey> extra_keys);
  Digest digest_of_buffer();

  HashAlgorithm algorithm_;
  std::uint64_t seed_;
  std::unique_ptr<Sha256> sha256_;  // only for kSha256Cbor
  Digest root_;
  std::string buffer_;
};

}  // namespace cachalot::block_hash
