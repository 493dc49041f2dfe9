// What storage keeps: the bytes of one KV block, with what is needed to bring it back into any pool.
//
// An object is a head and a body. The body is the block's payload, then its token ids (4 bytes each, none if
// the engine gave none). Backends that keep values keep `ObjectHead` in front of the body, in these bytes:
//
//      0  magic "CchObj1\0"                8
//      8  namespace digest, block hash    32
//     40  hash of the parent              16   zero: a root
//     56  bytes of the payload             8
//     64  tokens                           4
//     68  flags                            4   1: encrypted
//     72  seal                             8
//     80  nonce, tag of AES-GCM           28   zero: not encrypted
//    108  zero                             4
//    112
//
// The seal is XXH3-64 over the body, seeded with the XXH3-64 of bytes 8 to 72. So it also
// detects a body under another key, and a changed size or parent. It detects damage, not attacks.
//
// @threads any
#pragma once

#include <cachalot/hash.h>
#include <cachalot/result.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>

namespace cachalot::storage {

// The same in every pool and after every restart.
struct ObjectKey {
  BlockHash space;  // digest of the namespace
  BlockHash block;

  friend bool operator==(const ObjectKey&, const ObjectKey&) = default;
};

// 64 hexadecimal digits: the namespace's, then the block's.
std::string to_text(const ObjectKey& key);
// @errors kInvalidArgument
Result<ObjectKey> parse_object_key(std::string_view text);

inline constexpr std::uint64_t kObjectMagic =
    0x00'31'6a'62'4f'68'63'43;  // "CchObj1", little-endian
inline constexpr std::uint32_t kObjectEncrypted = 1;
inline constexpr std::uint32_t kMaxObjectTokens = 1u << 20;
inline constexpr std::uint64_t kMostTokenBytes = std::uint64_t{kMaxObjectTokens} * 4;
inline constexpr std::uint64_t kMaxPayloadBytes = std::uint64_t{1} << 32;

struct ObjectHead {
  std::uint64_t magic = kObjectMagic;
  ObjectKey key;
  BlockHash parent;  // zero: a root
  std::uint64_t payload_bytes = 0;
  std::uint32_t tokens = 0;
  std::uint32_t flags = 0;
  std::uint64_t seal = 0;
  unsigned char nonce[12] = {};
  unsigned char tag[16] = {};
  std::uint32_t reserved = 0;

  bool is_root() const { return parent == BlockHash{}; }
  std::uint64_t body_bytes() const { return payload_bytes + std::uint64_t{tokens} * 4; }
};
static_assert(sizeof(ObjectHead) == 112);

// A piece of memory that a backend reads from, or writes to.
using Bytes = std::span<const std::byte>;
using Room = std::span<std::byte>;

// Computes the seal of a body that lies in these pieces.
// @cost reads the body once, about 20 GB/s
std::uint64_t seal_of(const ObjectHead& head, std::span<const Bytes> body);

// Whether a head can be one of `key` at all: magic, key, sizes, flags. @errors kCorrupt
Status check_head(const ObjectHead& head, const ObjectKey& key);

}  // namespace cachalot::storage

template <>
struct std::hash<cachalot::storage::ObjectKey> {
  std::size_t operator()(const cachalot::storage::ObjectKey& key) const noexcept {
    return key.block.low ^ key.space.low * 0x9e3779b97f4a7c15u;
  }
};
