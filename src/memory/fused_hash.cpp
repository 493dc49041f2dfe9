#include "memory/fused_hash.h"

#include "base/check.h"
#include "memory/copy.h"
#include "memory/xxh3.h"

namespace cachalot::memory {
namespace {

std::uint64_t word(const unsigned char* at) {
  std::uint64_t value;
  std::memcpy(&value, at, sizeof value);
  return value;
}

std::uint64_t multiply_fold(std::uint64_t a, std::uint64_t b) {
  __extension__ using Wide = unsigned __int128;
  const Wide product = static_cast<Wide>(a) * b;
  return static_cast<std::uint64_t>(product) ^ static_cast<std::uint64_t>(product >> 64);
}

std::uint64_t avalanche(std::uint64_t hash) {
  hash ^= hash >> 37;
  hash *= 0x165667919e3779f9u;
  return hash ^ (hash >> 32);
}

std::uint64_t mix_16_bytes(const unsigned char* data, std::size_t secret) {
  return multiply_fold(word(data) ^ word(xxh3::kSecret + secret),
                       word(data + 8) ^ word(xxh3::kSecret + secret + 8));
}

std::uint64_t hash_nothing() {
  std::uint64_t hash = word(xxh3::kSecret + 56) ^ word(xxh3::kSecret + 64);
  hash = (hash ^ (hash >> 33)) * xxh3::kPrime64_2;
  hash = (hash ^ (hash >> 29)) * xxh3::kPrime64_3;
  return hash ^ (hash >> 32);
}

// One or two lines: 16-byte pieces from both ends towards the middle.
std::uint64_t hash_up_to_128(const unsigned char* data, std::size_t bytes) {
  std::uint64_t hash = bytes * xxh3::kPrime64_1;
  for (std::size_t i = 0; i < bytes / 32; ++i) {
    hash += mix_16_bytes(data + 16 * i, 32 * i);
    hash += mix_16_bytes(data + bytes - 16 * (i + 1), 32 * i + 16);
  }
  return avalanche(hash);
}

// Three lines: in order, with an avalanche after the first 128 bytes; the last piece counts twice.
std::uint64_t hash_up_to_240(const unsigned char* data, std::size_t bytes) {
  std::uint64_t hash = bytes * xxh3::kPrime64_1;
  for (std::size_t i = 0; i < 8; ++i) hash += mix_16_bytes(data + 16 * i, 16 * i);
  hash = avalanche(hash);
  for (std::size_t i = 8; i < bytes / 16; ++i) {
    hash += mix_16_bytes(data + 16 * i, 16 * (i - 8) + 3);
  }
  return avalanche(hash + mix_16_bytes(data + bytes - 16, 136 - 17));
}

std::uint64_t merge(const std::uint64_t (&accumulators)[8], std::uint64_t bytes) {
  std::uint64_t hash = bytes * xxh3::kPrime64_1;
  for (std::size_t i = 0; i < 4; ++i) {
    const unsigned char* secret = xxh3::kSecret + xxh3::kMergeSecret + 16 * i;
    hash += multiply_fold(accumulators[2 * i] ^ word(secret),
                          accumulators[2 * i + 1] ^ word(secret + 8));
  }
  return avalanche(hash);
}

}  // namespace

FusedHash::FusedHash(std::uint64_t total_bytes)
    : accumulators_{xxh3::kPrime32_3, xxh3::kPrime64_1, xxh3::kPrime64_2, xxh3::kPrime64_3,
                    xxh3::kPrime64_4, xxh3::kPrime32_2, xxh3::kPrime64_5, xxh3::kPrime32_1},
      total_bytes_(total_bytes) {
  static_assert(sizeof small_ <= xxh3::kLongerThanBytes &&
                sizeof small_ + 64 > xxh3::kLongerThanBytes);
  CACHALOT_CHECK(total_bytes % 64 == 0);
}

void FusedHash::update(const void* data, std::size_t bytes) {
  copy_kernels(Isa::kAuto).hash(nullptr, data, bytes, this);
}

std::uint64_t FusedHash::finish() const {
  CACHALOT_CHECK(done_bytes_ == total_bytes_);
  if (!is_short()) return merge(accumulators_, total_bytes_);
  if (total_bytes_ == 0) return hash_nothing();
  if (total_bytes_ <= 128) return hash_up_to_128(small_, total_bytes_);
  return hash_up_to_240(small_, total_bytes_);
}

std::uint64_t hash_lines(const void* data, std::size_t bytes) {
  FusedHash hash(bytes);
  hash.update(data, bytes);
  return hash.finish();
}

}  // namespace cachalot::memory
