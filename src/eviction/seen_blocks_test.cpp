#include "eviction/seen_blocks.h"

#include <gtest/gtest.h>

#include <map>

#include "base/rng.h"

namespace cachalot::eviction {
namespace {

using Seen = SeenBlocks::Seen;

TEST(SeenBlocks, AreFoundByNameUntilTheyAreRemoved) {
  SeenBlocks blocks(3);
  std::map<std::uint64_t, Seen> expected;
  base::Rng rng(3);
  for (int step = 0; step < 20000; ++step) {
    const std::uint64_t name = rng.below(5000);
    const auto at = expected.find(name);
    ASSERT_EQ(blocks.find(name), at == expected.end() ? SeenBlocks::kNone : at->second);
    if (at == expected.end()) {
      expected[name] = blocks.add(name, true);
    } else {
      blocks.remove(at->second);
      expected.erase(at);
    }
    ASSERT_EQ(blocks.size(), expected.size());
  }
  EXPECT_TRUE(blocks.is_valid());
  std::uint64_t visited = 0;
  blocks.for_each([&](Seen e, const SeenBlocks::Record& r) {
    ++visited;
    EXPECT_EQ(expected.at(r.name), e);
  });
  EXPECT_EQ(visited, expected.size());
}

TEST(SeenBlocks, WithoutANameAreNotFound) {
  SeenBlocks blocks(1);
  const Seen one = blocks.add(7, false);
  EXPECT_EQ(blocks.find(7), SeenBlocks::kNone);
  const Seen two = blocks.add(7, true);
  EXPECT_EQ(blocks.find(7), two);
  blocks.remove(one);
  EXPECT_EQ(blocks.find(7), two);
  EXPECT_TRUE(blocks.is_valid());
}

TEST(SeenBlocks, StandInOneListAShadow) {
  SeenBlocks blocks(2);
  const Seen a = blocks.add(1, true), b = blocks.add(2, true), c = blocks.add(3, true);
  blocks.link(a, 0, Shadow::kLru);
  blocks.link(b, 0, Shadow::kLru);
  blocks.link(c, b, Shadow::kLru);  // on the older side of b
  blocks.link(a, 1, Shadow::kDensity);
  EXPECT_EQ(blocks.newer(0, Shadow::kLru), a);
  EXPECT_EQ(blocks.newer(a, Shadow::kLru), c);
  EXPECT_EQ(blocks.newer(c, Shadow::kLru), b);
  EXPECT_EQ(blocks.newer(b, Shadow::kLru), 0u);
  EXPECT_EQ(blocks.newer(1, Shadow::kDensity), a);
  blocks.unlink(c, Shadow::kLru);
  EXPECT_FALSE(blocks.is_listed(c, Shadow::kLru));
  EXPECT_EQ(blocks.newer(a, Shadow::kLru), b);
  EXPECT_TRUE(blocks.is_valid());
  blocks.append(1, 0, Shadow::kLru);
  EXPECT_EQ(blocks.newer(0, Shadow::kLru), 0u);
  EXPECT_EQ(blocks.newer(1, Shadow::kLru), a);
  blocks.append(0, 1, Shadow::kDensity);
  EXPECT_EQ(blocks.newer(0, Shadow::kDensity), a);
  EXPECT_TRUE(blocks.is_valid());
}

}  // namespace
}  // namespace cachalot::eviction
