#include "pool/sizing.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>

#include "base/rng.h"

namespace cachalot::pool {
namespace {

constexpr std::uint64_t kMiB = 1u << 20, kGiB = 1u << 30;

Geometry shape_of(std::uint64_t block_bytes, std::uint32_t clients = kDefaultClients) {
  Geometry shape;
  shape.block_bytes = block_bytes;
  shape.clients = clients + shape.hosts;
  shape.note_bytes = kDefaultNoteBytes;
  return shape;
}

TEST(Sizing, APoolOfASizeTakesNoMoreAndOneOfABlockMoreWould) {
  base::Rng rng(7);
  for (int i = 0; i < 200; ++i) {
    Geometry shape =
        shape_of(64 * (1 + rng.below(65536)), 1 + static_cast<std::uint32_t>(rng.below(100)));
    shape.devices = 1 + static_cast<std::uint32_t>(rng.below(4));
    const std::uint64_t bytes = 64 * kMiB + rng.below(64 * kGiB);
    const Result<Geometry> fits = fitting(shape, bytes);
    ASSERT_TRUE(fits) << fits.error().message;
    EXPECT_LE(total_bytes(*fits), bytes);
    EXPECT_TRUE(lay_out(*fits));
    const Result<Geometry> more = with_capacity(shape, fits->capacity_blocks + 1);
    EXPECT_TRUE(!more || total_bytes(*more) > bytes) << shape.block_bytes << " " << bytes;
  }
}

// What users pay beyond the blocks that they asked for.
TEST(Sizing, SpareBlocksAndLinesTakeAnEighthOfAPoolAtMost) {
  for (const std::uint64_t block_bytes : {16u << 10, 64u << 10, 256u << 10, 2u << 20, 16u << 20}) {
    const Result<Geometry> pool = with_capacity(shape_of(block_bytes), kGiB / block_bytes);
    ASSERT_TRUE(pool);
    EXPECT_LE(total_bytes(*pool), kGiB + kGiB / 4) << block_bytes;
    const Result<Geometry> large = with_capacity(shape_of(block_bytes), 64 * kGiB / block_bytes);
    ASSERT_TRUE(large);
    EXPECT_LE(total_bytes(*large), 64 * kGiB + 64 * kGiB / 8) << block_bytes;
  }
}

TEST(Sizing, ASizeWithoutRoomForABlockSaysWhatABlockTakes) {
  const Result<Geometry> none = fitting(shape_of(16 * kMiB), 8 * kMiB);
  ASSERT_FALSE(none);
  EXPECT_EQ(none.error().code, Code::kInvalidArgument);
  const std::string text = none.error().message;
  const std::size_t at = text.rfind(' ');
  ASSERT_NE(at, std::string::npos);
  const Result<Geometry> one = fitting(shape_of(16 * kMiB), std::stoull(text.substr(at + 1)));
  ASSERT_TRUE(one) << text;
  EXPECT_EQ(one->capacity_blocks, 1u);
}

TEST(Sizing, ASizeBeyondTheLargestPoolIsRefused) {
  const Result<Geometry> none = fitting(shape_of(4096), std::uint64_t{1} << 62);
  ASSERT_FALSE(none);
  EXPECT_EQ(none.error().code, Code::kInvalidArgument);
  EXPECT_NE(std::string(none.error().message).find("4611686018427387904 bytes are too many"),
            std::string::npos)
      << none.error().message;
}

TEST(Sizing, BadCapacitiesAreRefused) {
  EXPECT_FALSE(with_capacity(shape_of(4096), 0));
  EXPECT_FALSE(with_capacity(shape_of(4096), 0xffffffffu));
  EXPECT_FALSE(with_capacity(shape_of(4096), 1, ~std::uint64_t{0}));
}

}  // namespace
}  // namespace cachalot::pool
