#include "block_hash/block_hash.h"

#include <openssl/evp.h>

#include "base/check.h"
#include "block_hash/big_endian.h"

// Compiled into this file: no library to find at run time.
#define XXH_INLINE_ALL
#include <xxhash.h>

namespace cachalot::block_hash {
namespace {

constexpr char kDigits[] = "0123456789abcdef";

// -1: not a hexadecimal digit.
int digit_value(char digit) {
  if (digit >= '0' && digit <= '9') return digit - '0';
  if (digit >= 'a' && digit <= 'f') return digit - 'a' + 10;
  if (digit >= 'A' && digit <= 'F') return digit - 'A' + 10;
  return -1;
}

}  // namespace

std::string to_hex(const BlockHash& hash) {
  std::string text(32, '0');
  for (std::size_t i = 0; i < 16; ++i) {
    text[15 - i] = kDigits[hash.high >> (4 * i) & 15];
    text[31 - i] = kDigits[hash.low >> (4 * i) & 15];
  }
  return text;
}

Result<BlockHash> parse_block_hash(std::string_view text) {
  BlockHash hash;
  bool is_good = text.size() == 32;
  for (std::size_t i = 0; is_good && i < text.size(); ++i) {
    const int value = digit_value(text[i]);
    std::uint64_t& word = i < 16 ? hash.high : hash.low;
    word = word << 4 | static_cast<std::uint64_t>(value & 15);
    is_good = value >= 0;
  }
  if (is_good) return hash;
  const std::string shown(text.substr(0, 64));
  return Error::make(Code::kInvalidArgument,
                     "block hash: \"%s\" (%zu characters), expected 32 hexadecimal digits",
                     shown.c_str(), text.size());
}

NamespaceId make_namespace(std::string_view fingerprint) {
  unsigned char sha256[EVP_MAX_MD_SIZE];
  CACHALOT_CHECK(EVP_Digest(fingerprint.data(), fingerprint.size(), sha256, nullptr, EVP_sha256(),
                            nullptr) == 1);
  NamespaceId space;
  space.seed = XXH3_64bits(fingerprint.data(), fingerprint.size());
  space.digest.high = big_endian(sha256);
  space.digest.low = big_endian(sha256 + 8);
  return space;
}

BlockHash hash_key(const NamespaceId& space, std::string_view key) {
  constexpr std::uint64_t kKeys = 0x9e3779b97f4a7c15u;  // apart from the chains' seed
  const XXH128_hash_t hash = XXH3_128bits_withSeed(key.data(), key.size(), space.seed ^ kKeys);
  return {hash.low64, hash.high64};
}

}  // namespace cachalot::block_hash
