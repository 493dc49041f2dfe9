#include "sim/engine/block_pool.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <algorithm>
#include <vector>

namespace cachalot::sim {
namespace {

using Blocks = std::vector<std::uint32_t>;

Blocks found_in(const BlockPool& pool, std::span<const std::uint64_t> keys, std::uint64_t most) {
  Blocks found;
  std::uint32_t free = 0;
  pool.find({}, keys, most, found, free);
  return found;
}

TEST(BlockPool, GivesOutWhatWasFreedLongestAgo) {
  BlockPool pool(4, true);
  Blocks a, b;
  pool.allocate(2, a);
  pool.allocate(2, b);
  EXPECT_EQ(pool.used_blocks(), 4u);
  pool.release(b);
  pool.release(a);
  // b's last block was freed first, a's first block last.
  Blocks again;
  pool.allocate(4, again);
  EXPECT_EQ(again, (Blocks{b[1], b[0], a[1], a[0]}));
}

TEST(BlockPool, FindsAPrefixByItsKeysUntilItsBlocksAreGivenOut) {
  BlockPool pool(3, true);
  const std::uint64_t keys[] = {7, 8, 9};
  Blocks blocks;
  pool.allocate(2, blocks);
  pool.name(blocks[0], 7);
  pool.name(blocks[1], 8);
  EXPECT_EQ(found_in(pool, keys, 3), blocks);
  EXPECT_EQ(found_in(pool, keys, 1), Blocks{blocks[0]});
  pool.release(blocks);
  EXPECT_EQ(found_in(pool, keys, 3), blocks);
  // The block that was never used goes first, then the end of the prefix.
  Blocks others;
  pool.allocate(2, others);
  EXPECT_EQ(found_in(pool, keys, 3), Blocks{blocks[0]});
  EXPECT_TRUE(pool.is_valid());
}

TEST(BlockPool, AFoundBlockIsKeptByReferringToIt) {
  BlockPool pool(2, true);
  const std::uint64_t keys[] = {7};
  Blocks blocks, found;
  pool.allocate(1, blocks);
  pool.name(blocks[0], 7);
  pool.release(blocks);
  std::uint32_t free = 0;
  pool.find({}, keys, 1, found, free);
  EXPECT_EQ(free, 1u);
  pool.refer(found[0]);
  pool.refer(found[0]);
  EXPECT_EQ(pool.free_blocks(), 1u);
  pool.release(found);
  EXPECT_EQ(pool.free_blocks(), 1u);
  pool.release(found);
  EXPECT_EQ(pool.free_blocks(), 2u);
}

TEST(BlockPool, BlocksOfAPreemptedRequestAreFoundWhileNothingElseHasThem) {
  BlockPool pool(3, true);
  Blocks blocks;
  pool.allocate(3, blocks);
  std::vector<BlockPool::Held> held;
  for (const std::uint32_t block : blocks) held.push_back({block, pool.generation(block)});
  pool.release(blocks);
  Blocks found, other;
  std::uint32_t free = 0;
  pool.find(held, {}, 3, found, free);
  EXPECT_EQ(found, blocks);
  pool.allocate(1, other);  // the last of the three
  pool.find(held, {}, 3, found, free);
  EXPECT_EQ(found, (Blocks{blocks[0], blocks[1]}));
}

TEST(BlockPool, WithoutPrefixCachingNothingIsFound) {
  BlockPool pool(2, false);
  const std::uint64_t keys[] = {7};
  Blocks blocks;
  pool.allocate(1, blocks);
  pool.name(blocks[0], 7);
  EXPECT_TRUE(found_in(pool, keys, 1).empty());
  EXPECT_TRUE(pool.is_valid());
}

RC_GTEST_PROP(BlockPool, StaysValidWhateverIsAllocatedNamedAndReleased, ()) {
  BlockPool pool(*rc::gen::inRange<std::uint32_t>(1, 20), true);
  std::vector<Blocks> owners;
  for (int step = 0; step < 100; ++step) {
    const int kind = *rc::gen::inRange(0, 4);
    if (kind == 0 && pool.free_blocks() != 0) {
      owners.emplace_back();
      pool.allocate(*rc::gen::inRange<std::uint32_t>(1, pool.free_blocks() + 1), owners.back());
    } else if (kind == 1 && !owners.empty()) {
      const Blocks& owner = owners[*rc::gen::inRange<std::size_t>(0, owners.size())];
      pool.name(owner.front(), *rc::gen::inRange<std::uint64_t>(0, 6));
    } else if (kind == 2 && !owners.empty()) {
      const auto i = *rc::gen::inRange<std::size_t>(0, owners.size());
      pool.release(owners[i]);
      owners.erase(owners.begin() + static_cast<std::ptrdiff_t>(i));
    } else if (kind == 3) {
      const std::uint64_t keys[] = {*rc::gen::inRange<std::uint64_t>(0, 6)};
      const Blocks found = found_in(pool, keys, 1);
      if (found.empty()) continue;
      pool.refer(found[0]);
      owners.push_back(found);
    }
    RC_ASSERT(pool.is_valid());
  }
  for (const Blocks& owner : owners) pool.release(owner);
  RC_ASSERT(pool.used_blocks() == 0u);
  RC_ASSERT(pool.is_valid());
}

}  // namespace
}  // namespace cachalot::sim
