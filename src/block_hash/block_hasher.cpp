#include "block_hash/block_hasher.h"

#include <openssl/evp.h>

#include <bit>
#include <cstring>
#include <utility>
#include <variant>

#include "base/check.h"
#include "block_hash/big_endian.h"
#include "block_hash/cbor_writer.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

namespace cachalot::block_hash {
namespace {

static_assert(std::endian::native == std::endian::little, "what is hashed is little-endian");

// Of an engine without PYTHONHASHSEED.
constexpr std::string_view kVllmSeed = "vllm-none-hash";

void append_word(std::string& to, std::uint64_t word) {
  char bytes[sizeof word];
  std::memcpy(bytes, &word, sizeof word);
  to.append(bytes, sizeof bytes);
}

// Of a text or bytes.
std::string_view bytes_of(const ExtraKeyPart& part) {
  if (const auto* const text = std::get_if<std::string>(&part)) return *text;
  const auto& bytes = std::get<std::vector<std::uint8_t>>(part);
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

void append_plainly(std::string& to, const ExtraKeyPart& part) {
  append_word(to, part.index());
  if (const auto* const number = std::get_if<std::int64_t>(&part))
    return append_word(to, static_cast<std::uint64_t>(*number));
  const std::string_view bytes = bytes_of(part);
  append_word(to, bytes.size());
  to.append(bytes);
}

template <class Id>
void encode_plainly(std::string& to, const Digest& parent, std::span<const Id> ids,
                    std::span<const ExtraKey> extra_keys) {
  to.append(reinterpret_cast<const char*>(parent.bytes.data()), 16);
  to.append(reinterpret_cast<const char*>(ids.data()), ids.size_bytes());
  for (const ExtraKey& key : extra_keys) {
    append_word(to, key.size());
    for (const ExtraKeyPart& part : key) append_plainly(to, part);
  }
  append_word(
      to, ids.size() | std::uint64_t{sizeof(Id)} << 32 | std::uint64_t{extra_keys.size()} << 40);
}

template <class Id>
void encode_as_cbor(std::string& to, const Digest& parent, std::span<const Id> ids,
                    std::span<const ExtraKey> extra_keys) {
  CborWriter cbor(to);
  cbor.array(3);
  cbor.bytes(parent.bytes.data(), parent.size_bytes);
  cbor.array(ids.size());
  for (const Id id : ids) cbor.natural(id);
  if (extra_keys.empty()) {
    cbor.null();
    return;
  }
  cbor.array(extra_keys.size());
  for (const ExtraKey& key : extra_keys) {
    cbor.array(key.size());
    for (const ExtraKeyPart& part : key) {
      if (const auto* const number = std::get_if<std::int64_t>(&part)) {
        cbor.integer(*number);
      } else if (std::holds_alternative<std::string>(part)) {
        cbor.text(bytes_of(part));
      } else {
        cbor.bytes(bytes_of(part).data(), bytes_of(part).size());
      }
    }
  }
}

Digest xxh3_digest(std::string_view input, std::uint64_t seed) {
  XXH128_canonical_t canonical;
  XXH128_canonicalFromHash(&canonical, XXH3_128bits_withSeed(input.data(), input.size(), seed));
  Digest digest;
  std::memcpy(digest.bytes.data(), canonical.digest, sizeof canonical.digest);
  return digest;
}

}  // namespace

// SHA-256 looked up once: by name it costs more than hashing a block.
class BlockHasher::Sha256 {
 public:
  static std::unique_ptr<Sha256> make() {
    std::unique_ptr<Sha256> result(new Sha256);
    return result->method_ != nullptr && result->state_ != nullptr ? std::move(result) : nullptr;
  }
  ~Sha256() {
    EVP_MD_CTX_free(state_);
    EVP_MD_free(method_);
  }
  Sha256(const Sha256&) = delete;
  Sha256& operator=(const Sha256&) = delete;

  Digest digest(std::string_view input) {
    Digest digest;
    digest.size_bytes = 32;
    CACHALOT_CHECK(EVP_DigestInit_ex2(state_, method_, nullptr) == 1);
    CACHALOT_CHECK(EVP_DigestUpdate(state_, input.data(), input.size()) == 1);
    CACHALOT_CHECK(EVP_DigestFinal_ex(state_, digest.bytes.data(), nullptr) == 1);
    return digest;
  }

 private:
  Sha256() : method_(EVP_MD_fetch(nullptr, "SHA256", nullptr)), state_(EVP_MD_CTX_new()) {}

  EVP_MD* method_;
  EVP_MD_CTX* state_;
};

const char* hash_algorithm_name(HashAlgorithm algorithm) {
  switch (algorithm) {
    case HashAlgorithm::kXxh3:
      return "xxh3_128";
    case HashAlgorithm::kSha256Cbor:
      return "sha256_cbor";
    case HashAlgorithm::kXxhashCbor:
      return "xxhash_cbor";
  }
  return "unknown";
}

BlockHash Digest::block_hash() const {
  return BlockHash{.low = big_endian(bytes.data() + 8), .high = big_endian(bytes.data())};
}

std::uint64_t Digest::low64() const {
  return big_endian(bytes.data() + size_bytes - 8);
}

std::string Digest::hex() const {
  std::string text = to_hex(block_hash());
  if (size_bytes == 32) {
    text += to_hex(
        BlockHash{.low = big_endian(bytes.data() + 24), .high = big_endian(bytes.data() + 16)});
  }
  return text;
}

BlockHasher::BlockHasher(HashAlgorithm algorithm, std::uint64_t seed,
                         std::unique_ptr<Sha256> sha256)
    : algorithm_(algorithm), seed_(seed), sha256_(std::move(sha256)) {}
BlockHasher::BlockHasher(BlockHasher&&) noexcept = default;
BlockHasher& BlockHasher::operator=(BlockHasher&&) noexcept = default;
BlockHasher::~BlockHasher() = default;

BlockHasher BlockHasher::xxh3(const NamespaceId& space) {
  return BlockHasher(HashAlgorithm::kXxh3, space.seed, nullptr);
}

Result<BlockHasher> BlockHasher::vllm(HashAlgorithm algorithm, std::string_view python_hash_seed) {
  std::unique_ptr<Sha256> sha256;
  if (algorithm == HashAlgorithm::kXxh3) {
    return Error::make(Code::kInvalidArgument, "hash: %s is none of vLLM's",
                       hash_algorithm_name(algorithm));
  }
  if (algorithm == HashAlgorithm::kSha256Cbor && (sha256 = Sha256::make()) == nullptr) {
    return Error::make(Code::kUnsupported, "sha256_cbor: libcrypto offers no SHA-256");
  }
  if (algorithm == HashAlgorithm::kXxhashCbor && python_hash_seed.empty()) {
    return Error::make(Code::kInvalidArgument,
                       "xxhash_cbor: no python_hash_seed, expected the PYTHONHASHSEED of all "
                       "engines: without one each vLLM engine takes a random seed");
  }
  BlockHasher hasher(algorithm, 0, std::move(sha256));
  CborWriter(hasher.buffer_).text(python_hash_seed.empty() ? kVllmSeed : python_hash_seed);
  hasher.root_ = hasher.digest_of_buffer();
  return hasher;
}

Digest BlockHasher::digest_of_buffer() {
  return sha256_ != nullptr ? sha256_->digest(buffer_) : xxh3_digest(buffer_, seed_);
}

template <class Id>
Digest BlockHasher::hash(const Digest& parent, std::span<const Id> ids,
                         std::span<const ExtraKey> extra_keys) {
  CACHALOT_CHECK(ids.size() <= 0xffffffffu && extra_keys.size() <= 0xffffffu);
  CACHALOT_CHECK(parent.size_bytes == root_.size_bytes);
  buffer_.clear();
  if (algorithm_ == HashAlgorithm::kXxh3) {
    encode_plainly(buffer_, parent, ids, extra_keys);
  } else {
    encode_as_cbor(buffer_, parent, ids, extra_keys);
  }
  return digest_of_buffer();
}

Digest BlockHasher::next(const Digest& parent, std::span<const std::uint32_t> ids,
                         std::span<const ExtraKey> extra_keys) {
  return hash(parent, ids, extra_keys);
}

Digest BlockHasher::next(const Digest& parent, std::span<const std::uint64_t> ids,
                         std::span<const ExtraKey> extra_keys) {
  return hash(parent, ids, extra_keys);
}

Digest BlockHasher::hash_blocks(const Digest& parent, std::span<const std::uint32_t> ids,
                                std::size_t block_ids, std::span<BlockHash> hashes,
                                std::span<const ExtraKeys> extra_keys) {
  CACHALOT_CHECK(block_ids > 0);
  Digest digest = parent;
  for (std::size_t i = 0; i < hashes.size() && ids.size() >= block_ids; ++i) {
    std::span<const ExtraKey> keys;
    if (i < extra_keys.size()) keys = extra_keys[i];
    digest = next(digest, ids.first(block_ids), keys);
    hashes[i] = digest.block_hash();
    ids = ids.subspan(block_ids);
  }
  return digest;
}

}  // namespace cachalot::block_hash
