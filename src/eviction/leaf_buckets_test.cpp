#include "eviction/leaf_buckets.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "base/rng.h"

namespace cachalot::eviction {
namespace {

// Against a look at each leaf. A leaf's bin is that of its bucket's newest use: its own or a later
// one of the same bin or the next.
TEST(LeafBuckets, ShowALeafOfTheLeastDensity) {
  DensityTable table;
  base::Rng rng(21);
  for (std::uint32_t c = 0; c < DensityTable::kClasses; ++c) {
    for (int i = 0; i < 300; ++i) {
      table.count_use(c, rng.below(std::uint64_t{8} << c));
      table.count_loss(c, rng.below(100000));
    }
  }
  table.learn({}, 1 << 20);

  SeenBlocks blocks(LeafBuckets::kHeads);
  LeafBuckets leaves(blocks, table, 0);
  EXPECT_EQ(leaves.least(), SeenBlocks::kNone);
  std::vector<SeenBlocks::Seen> in;
  std::uint64_t now = 0;
  for (int step = 0; step < 20000; ++step) {
    now += 1 + rng.below(30);
    leaves.open(now);
    const SeenBlocks::Seen leaf = blocks.add(static_cast<std::uint64_t>(step), true);
    blocks[leaf].cls = static_cast<std::uint8_t>(rng.below(DensityTable::kClasses));
    // Some become leaves long after their last use.
    blocks[leaf].used_at = rng.below(4) == 0 ? 1 + rng.below(now) : now;
    leaves.insert(leaf);
    in.push_back(leaf);
    if (in.size() < 500) continue;

    const SeenBlocks::Seen least = leaves.least();
    ASSERT_NE(least, SeenBlocks::kNone);
    const auto lowest = [&](SeenBlocks::Seen e) {
      const std::uint32_t bin = DensityTable::bin(now - blocks[e].used_at);
      const std::uint32_t cls = blocks[e].cls;
      return std::min(table.density(cls, bin), table.density(cls, bin == 0 ? 0 : bin - 1));
    };
    const auto highest = [&](SeenBlocks::Seen e) {
      const std::uint32_t bin = DensityTable::bin(now - blocks[e].used_at);
      const std::uint32_t cls = blocks[e].cls;
      return std::max(table.density(cls, bin), table.density(cls, bin == 0 ? 0 : bin - 1));
    };
    for (const SeenBlocks::Seen e : in) ASSERT_LE(lowest(least), highest(e));
    ASSERT_TRUE(leaves.is_valid());
    const std::size_t gone =
        rng.below(2) == 0
            ? rng.below(in.size())
            : static_cast<std::size_t>(std::find(in.begin(), in.end(), least) - in.begin());
    leaves.erase(in[gone]);
    blocks.remove(in[gone]);
    in[gone] = in.back();
    in.pop_back();
  }
}

}  // namespace
}  // namespace cachalot::eviction
