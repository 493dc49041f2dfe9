#include "device_memory/heap/part_index.h"

#include <gtest/gtest.h>

#include <deque>
#include <set>

#include "base/rng.h"

namespace cachalot::device_memory {
namespace {

using Heads = PartIndex<&Block::head>;

std::uint64_t count(const Heads& heads) {
  const Result<std::uint64_t> count = heads.check();
  EXPECT_TRUE(count) << count.error().message;
  return count ? *count : ~std::uint64_t{0};
}

// Beside a sorted set, where a step is a byte (4 KiB), and where it is not (16 MiB).
class PartIndexTest : public testing::TestWithParam<std::uint64_t> {};

TEST_P(PartIndexTest, FindsWhatASortedSetFinds) {
  const std::uint64_t unit = GetParam(), step = std::max<std::uint64_t>(1, unit / 4096);
  Heads heads;
  heads.open(unit);
  EXPECT_TRUE(heads.is_empty());
  std::deque<Block> blocks(200);
  std::multiset<std::uint64_t> sizes;
  base::Rng rng(3);
  for (int i = 0; i < 20'000; ++i) {
    Block& block = blocks[rng.below(blocks.size())];
    if (block.head.bytes != 0) {
      sizes.erase(sizes.find(block.head.bytes));
      heads.leave(&block);
      block.head.bytes = 0;
    } else {
      heads.enter(&block, rng.below(unit / step) * step);
      if (block.head.bytes != 0) sizes.insert(block.head.bytes);
    }
    ASSERT_EQ(heads.is_empty(), sizes.empty());
    const std::uint64_t asked = (1 + rng.below(unit / step - 1)) * step;
    const auto least = sizes.lower_bound(asked);
    const Block* const found = heads.at_least(asked);
    ASSERT_EQ(found == nullptr, least == sizes.end()) << asked;
    if (found != nullptr) {
      ASSERT_EQ(found->head.bytes, *least);
    }
    const Block* const below = heads.below(asked);
    ASSERT_EQ(below == nullptr, least == sizes.begin()) << asked;
    if (below != nullptr) {
      ASSERT_EQ(below->head.bytes, *std::prev(least));
    }
  }
  EXPECT_EQ(count(heads), sizes.size());
  EXPECT_EQ(heads.at_least(unit), nullptr);
  EXPECT_EQ(heads.at_least(2 * unit), nullptr);
  EXPECT_EQ(heads.below(2 * unit) == nullptr, sizes.empty());
}

INSTANTIATE_TEST_SUITE_P(Units, PartIndexTest, testing::Values(64, 4096, 2 << 20, 16 << 20));

TEST(PartIndex, SizesBetweenTwoStepsAreNeverTooSmall) {
  Heads heads;
  heads.open(8192);
  Block block;
  heads.enter(&block, 101);
  EXPECT_EQ(heads.at_least(100), &block);
  EXPECT_EQ(heads.at_least(101), nullptr) << "it has them, but a list is not searched";
  EXPECT_EQ(heads.below(101), nullptr);
  EXPECT_EQ(heads.below(102), &block);
}

TEST(PartIndex, FindsAnotherThanOne) {
  Heads heads;
  heads.open(4096);
  Block a, b, c;
  heads.enter(&a, 7);
  EXPECT_EQ(heads.at_least(5, &a), nullptr);
  heads.enter(&c, 9);
  EXPECT_EQ(heads.at_least(5, &a), &c);
  heads.enter(&b, 7);
  EXPECT_EQ(heads.at_least(5, &a), &b);
  EXPECT_EQ(heads.at_least(5, &b), &a);
  EXPECT_EQ(count(heads), 3u);
}

}  // namespace
}  // namespace cachalot::device_memory
