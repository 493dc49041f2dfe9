#include "memory/fused_hash.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#define XXH_INLINE_ALL
#include <xxhash.h>

#include <string>
#include <vector>

#include "base/rng.h"
#include "memory/copy.h"
#include "testing/memory/isa_name.h"

namespace cachalot::memory {
namespace {

class FusedHashOfIsa : public testing::TestWithParam<Isa> {};

std::vector<unsigned char> random_bytes(std::size_t bytes, std::uint64_t seed) {
  base::Rng rng(seed);
  std::vector<unsigned char> result(bytes);
  for (unsigned char& byte : result) byte = static_cast<unsigned char>(rng.below(256));
  return result;
}

// What one loop of one instruction path makes of `data`, given in random pieces.
std::uint64_t hash_in_pieces(CopyKernels::Bulk loop, const std::vector<unsigned char>& data,
                             base::Rng& rng) {
  std::vector<Line> copy(data.size() / 64 + 1);
  auto* to = reinterpret_cast<unsigned char*>(copy.data());
  FusedHash hash(data.size());
  for (std::size_t at = 0; at < data.size();) {
    const std::size_t lines_left = (data.size() - at) / 64;
    const std::size_t most = rng.below(2) == 0 ? 20 : lines_left;
    const std::size_t piece = 64 * std::min<std::size_t>(lines_left, rng.below(most + 1));
    loop(to + at, data.data() + at, piece, &hash);
    at += piece;
  }
  return hash.finish();
}

TEST_P(FusedHashOfIsa, EqualsXxh3OfEveryNumberOfLinesUpToFourBlocks) {
  const CopyKernels& kernels = copy_kernels(GetParam());
  base::Rng rng(1);
  for (std::size_t lines = 0; lines <= 66; ++lines) {
    const std::vector<unsigned char> data = random_bytes(64 * lines, lines);
    const std::uint64_t expected = XXH3_64bits(data.data(), data.size());
    for (int split = 0; split < 4; ++split) {
      EXPECT_EQ(hash_in_pieces(kernels.store, data, rng), expected) << lines;
      EXPECT_EQ(hash_in_pieces(kernels.stream, data, rng), expected) << lines;
      EXPECT_EQ(hash_in_pieces(kernels.hash, data, rng), expected) << lines;
    }
  }
}

RC_GTEST_PROP(FusedHash, EqualsXxh3ForAnySplitOnEveryPath, (std::uint64_t seed)) {
  base::Rng rng(seed);
  const std::vector<unsigned char> data = random_bytes(64 * rng.below(400), seed);
  const std::uint64_t expected = XXH3_64bits(data.data(), data.size());
  for (const Isa isa : {Isa::kSse2, Isa::kAvx2, Isa::kAvx512}) {
    const CopyKernels& kernels = copy_kernels(isa);
    RC_ASSERT(hash_in_pieces(kernels.store, data, rng) == expected);
    RC_ASSERT(hash_in_pieces(kernels.stream, data, rng) == expected);
    RC_ASSERT(hash_in_pieces(kernels.hash, data, rng) == expected);
  }
  RC_ASSERT(hash_lines(data.data(), data.size()) == expected);
}

TEST(HashLines, OfALargeBufferEqualsXxh3) {
  const std::vector<unsigned char> data = random_bytes((4 << 20) + 3 * 64, 5);
  EXPECT_EQ(hash_lines(data.data(), data.size()), XXH3_64bits(data.data(), data.size()));
}

TEST(FusedHashDeathTest, AbortsOnATotalThatIsNotWholeLinesOrNotReached) {
  EXPECT_DEATH(FusedHash(65), "total_bytes % 64");
  FusedHash hash(128);
  const Line line = {};
  hash.update(&line, 64);
  EXPECT_DEATH(hash.finish(), "done_bytes_ == total_bytes_");
}

INSTANTIATE_TEST_SUITE_P(Every, FusedHashOfIsa,
                         testing::Values(Isa::kSse2, Isa::kAvx2, Isa::kAvx512),
                         [](const auto& of) { return std::string(isa_name(of.param)); });

}  // namespace
}  // namespace cachalot::memory
