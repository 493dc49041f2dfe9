#include "storage/object.h"

#include <cinttypes>
#include <cstring>

#define XXH_INLINE_ALL
#include <xxhash.h>

#include "block_hash/block_hash.h"

namespace cachalot::storage {

std::string to_text(const ObjectKey& key) {
  return block_hash::to_hex(key.space) + block_hash::to_hex(key.block);
}

Result<ObjectKey> parse_object_key(std::string_view text) {
  if (text.size() != 64) {
    return Error::make(Code::kInvalidArgument,
                       "object key \"%.80s\": %zu characters, expected 64 hexadecimal digits",
                       std::string(text).c_str(), text.size());
  }
  ObjectKey key;
  CACHALOT_TRY_ASSIGN(key.space, block_hash::parse_block_hash(text.substr(0, 32)));
  CACHALOT_TRY_ASSIGN(key.block, block_hash::parse_block_hash(text.substr(32)));
  return key;
}

std::uint64_t seal_of(const ObjectHead& head, std::span<const Bytes> body) {
  constexpr std::size_t kFirst = offsetof(ObjectHead, key), kLast = offsetof(ObjectHead, seal);
  const auto* const bytes = reinterpret_cast<const unsigned char*>(&head);
  const std::uint64_t seed = XXH3_64bits(bytes + kFirst, kLast - kFirst);
  if (body.size() == 1) return XXH3_64bits_withSeed(body[0].data(), body[0].size(), seed);
  XXH3_state_t state{};  // the library reads two of its fields before it sets them
  XXH3_64bits_reset_withSeed(&state, seed);
  for (const Bytes& piece : body) XXH3_64bits_update(&state, piece.data(), piece.size());
  return XXH3_64bits_digest(&state);
}

Status check_head(const ObjectHead& head, const ObjectKey& key) {
  const char* wrong = nullptr;
  if (head.magic != kObjectMagic) {
    wrong = "no head of an object";
  } else if (!(head.key == key)) {
    wrong = "the head of another object";
  } else if (head.payload_bytes == 0 || head.payload_bytes > kMaxPayloadBytes ||
             head.tokens > kMaxObjectTokens || (head.flags & ~kObjectEncrypted) != 0) {
    wrong = "a head with sizes or flags out of range";
  }
  if (wrong == nullptr) return {};
  return Error::make(Code::kCorrupt, "object %.32s…: has %s", block_hash::to_hex(key.block).c_str(),
                     wrong);
}

}  // namespace cachalot::storage
