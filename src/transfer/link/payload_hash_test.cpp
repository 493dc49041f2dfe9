#include "transfer/link/payload_hash.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>
#define XXH_INLINE_ALL
#include <xxhash.h>

#include <algorithm>
#include <vector>

#include "base/rng.h"
#include "memory/cpu.h"
#include "transfer/link/payload_hash_update.h"

namespace cachalot::transfer {
namespace {

// Of the bytes in parts of any size.
std::uint64_t hash_by(HashUpdate update, const std::vector<unsigned char>& bytes, base::Rng& rng) {
  XXH3_state_t state;
  XXH3_64bits_reset(&state);
  for (std::size_t at = 0; at < bytes.size();) {
    const std::size_t part = std::min<std::size_t>(bytes.size() - at, 1 + rng.below(2000));
    update(&state, bytes.data() + at, part);
    at += part;
  }
  return XXH3_64bits_digest(&state);
}

RC_GTEST_PROP(PayloadHash, IsTheSameByAllInstructions, ()) {
  base::Rng rng(*rc::gen::arbitrary<std::uint64_t>());
  std::vector<unsigned char> bytes(*rc::gen::inRange<std::size_t>(0, 10'000));
  for (auto& byte : bytes) byte = static_cast<unsigned char>(rng.next());
  const std::uint64_t expected = XXH3_64bits(bytes.data(), bytes.size());
  PayloadHash hash;
  hash.add(bytes.data(), bytes.size());
  RC_ASSERT(hash.digest() == expected);
  RC_ASSERT(hash_by(update_hash_sse2, bytes, rng) == expected);
  if (memory::isa_available(memory::Isa::kAvx2))
    RC_ASSERT(hash_by(update_hash_avx2, bytes, rng) == expected);
}

}  // namespace
}  // namespace cachalot::transfer
