#include "host_cache.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>

namespace cachalot::llama {
namespace {

constexpr std::uint64_t kBytes = 100;

BlockHash hash_of(std::uint64_t chain, std::uint64_t block) {
  return {chain * 1000 + block, chain};
}

std::vector<BlockHash> chain_of(std::uint64_t chain, std::size_t blocks) {
  std::vector<BlockHash> hashes;
  for (std::size_t i = 0; i < blocks; ++i) hashes.push_back(hash_of(chain, i));
  return hashes;
}

HostCache::Fill filler(std::uint8_t value) {
  return [value](std::span<std::byte> room) {
    std::fill(room.begin(), room.end(), std::byte{value});
    return Status();
  };
}

bool add(HostCache& cache, std::uint64_t chain, std::uint64_t block) {
  const BlockHash parent = hash_of(chain, block - 1);
  return cache.add(block == 0 ? nullptr : &parent, hash_of(chain, block), kBytes,
                   filler(static_cast<std::uint8_t>(16 * chain + block)));
}

TEST(HostCacheTest, ABlockHasTheBytesThatItWasFilledWith) {
  HostCache cache(10 * kBytes);
  for (std::uint64_t block = 0; block < 3; ++block) ASSERT_TRUE(add(cache, 1, block));
  EXPECT_EQ(cache.lookup(chain_of(1, 5)), 3u);
  EXPECT_EQ(cache.lookup(chain_of(2, 5)), 0u);
  const std::optional<HostCache::Pinned> block = cache.pin(hash_of(1, 2));
  ASSERT_TRUE(block);
  ASSERT_EQ(block->bytes().size(), kBytes);
  EXPECT_EQ(block->bytes()[99], std::byte{18});
  EXPECT_FALSE(cache.pin(hash_of(1, 3)));
  EXPECT_TRUE(cache.is_valid());
}

TEST(HostCacheTest, TheLeastRecentlyUsedLeafGoesFirst) {
  HostCache cache(4 * kBytes);
  for (const std::uint64_t chain : {1, 2})
    for (const std::uint64_t block : {0, 1}) ASSERT_TRUE(add(cache, chain, block));
  ASSERT_TRUE(cache.pin(hash_of(1, 1)));  // a use of its whole chain
  ASSERT_TRUE(add(cache, 3, 0));
  EXPECT_EQ(cache.lookup(chain_of(1, 2)), 2u);
  EXPECT_EQ(cache.lookup(chain_of(2, 2)), 1u);
  EXPECT_EQ(cache.counts().bytes, 4 * kBytes);
  EXPECT_EQ(cache.counts().evicted_blocks, 1u);
  EXPECT_TRUE(cache.is_valid());
}

TEST(HostCacheTest, APinnedBlockAndItsChainStay) {
  HostCache cache(2 * kBytes);
  ASSERT_TRUE(add(cache, 1, 0));
  ASSERT_TRUE(add(cache, 1, 1));
  {
    const std::optional<HostCache::Pinned> block = cache.pin(hash_of(1, 1));
    ASSERT_TRUE(block);
    EXPECT_FALSE(add(cache, 2, 0));
    EXPECT_EQ(block->bytes()[0], std::byte{17});
  }
  EXPECT_TRUE(add(cache, 2, 0));
  EXPECT_EQ(cache.lookup(chain_of(1, 2)), 1u);
  EXPECT_EQ(cache.counts().refused_blocks, 1u);
}

TEST(HostCacheTest, ABlockWithoutItsParentIsRefused) {
  HostCache cache(10 * kBytes);
  EXPECT_FALSE(add(cache, 1, 1));
  EXPECT_EQ(cache.counts().blocks, 0u);
}

TEST(HostCacheTest, ABlockThatCannotBeFilledIsNotAdded) {
  HostCache cache(kBytes);
  const BlockHash hash = hash_of(1, 0);
  EXPECT_FALSE(cache.add(nullptr, hash, kBytes, [](std::span<std::byte>) -> Status {
    return Error::make(Code::kUnsupported, "cells out of order");
  }));
  EXPECT_EQ(cache.lookup({&hash, 1}), 0u);
  EXPECT_TRUE(add(cache, 1, 0));  // its room is free again
  EXPECT_TRUE(cache.is_valid());
}

TEST(HostCacheTest, ABlockLargerThanTheCapacityEvictsNothing) {
  HostCache cache(kBytes);
  ASSERT_TRUE(add(cache, 1, 0));
  EXPECT_FALSE(cache.add(nullptr, hash_of(2, 0), kBytes + 1, filler(1)));
  EXPECT_EQ(cache.counts().blocks, 1u);
}

TEST(HostCacheTest, AChainThatGrowsOverTheCapacityKeepsItsBeginning) {
  HostCache cache(3 * kBytes);
  for (std::uint64_t block = 0; block < 3; ++block) ASSERT_TRUE(add(cache, 1, block));
  EXPECT_FALSE(add(cache, 1, 3));
  EXPECT_EQ(cache.lookup(chain_of(1, 4)), 3u);
}

TEST(HostCacheTest, StaysValidUnderRandomUse) {
  std::mt19937_64 random(7);
  HostCache cache(20 * kBytes);
  std::vector<HostCache::Pinned> pins;
  for (int step = 0; step < 5000; ++step) {
    const std::uint64_t chain = random() % 6, block = random() % 8;
    const std::uint64_t action = random() % 8;
    if (action < 5) {
      (void)add(cache, chain, block);
    } else if (action < 7 && pins.size() < 5) {
      if (std::optional<HostCache::Pinned> block_pin = cache.pin(hash_of(chain, block))) {
        EXPECT_EQ(block_pin->bytes()[0], static_cast<std::byte>(16 * chain + block));
        pins.push_back(*std::move(block_pin));
      }
    } else {
      pins.clear();
    }
    if (step % 50 == 0) {
      ASSERT_TRUE(cache.is_valid()) << step;
    }
  }
  EXPECT_GT(cache.counts().evicted_blocks, 100u);
  pins.clear();
  EXPECT_TRUE(cache.is_valid());
}

}  // namespace
}  // namespace cachalot::llama
