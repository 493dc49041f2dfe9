// A client keeps a prefix in the pool, by a handle.

#include <utility>

#include "testing/client/test_cluster.h"

namespace cachalot::client {
namespace {

constexpr std::uint32_t kPages[] = {0, 1, 2, 3, 4, 5, 6, 7};
constexpr std::uint32_t kCapacity = 64;

class ClientContextTest : public testing::Test {
 protected:
  std::vector<BlockHash> store(std::uint64_t seed) {
    const std::vector<BlockHash> hashes = engine_.client.hash_tokens(tokens_of(seed, 32));
    EXPECT_TRUE(engine_.client.store(engine_.cache, nullptr, hashes, kPages));
    return hashes;
  }
  void fill_the_pool(std::uint64_t first) {
    for (std::uint64_t seed = first; seed < first + 2 * kCapacity / 8; ++seed) store(seed);
  }

  Cluster cluster_{small_geometry().block_bytes(), kCapacity, "coherent"};
  Engine engine_{cluster_.client_options()};
};

TEST_F(ClientContextTest, AKeptPrefixStaysAndWhatFollowsItGoes) {
  const std::vector<BlockHash> hashes = store(1);
  const Result<Context> context = engine_.client.create_context(hashes[3], 3600);
  ASSERT_TRUE(context) << context.error().message;
  EXPECT_EQ(context->blocks, 4u);
  fill_the_pool(100);
  EXPECT_EQ(*engine_.client.lookup(hashes), 4u);
  const Result<Context> renewed = engine_.client.renew_context(context->handle, 7200);
  ASSERT_TRUE(renewed);
  EXPECT_GT(renewed->expires_unix_s, context->expires_unix_s);
  ASSERT_TRUE(engine_.client.drop_context(context->handle));
  fill_the_pool(200);
  EXPECT_EQ(*engine_.client.lookup(hashes), 0u);
  EXPECT_EQ(engine_.client.drop_context(context->handle).error().code, Code::kNotFound);
}

TEST_F(ClientContextTest, WhatASessionRetainsGoesLast) {
  const std::vector<BlockHash> hashes = store(1), other = store(2);
  EXPECT_EQ(*engine_.client.retain("agent 7", hashes[5], 3600), 6u);
  fill_the_pool(100);
  EXPECT_EQ(*engine_.client.lookup(hashes), 6u);
  EXPECT_EQ(*engine_.client.lookup(other), 0u);
  // Its next state takes the place of the one before.
  const std::vector<BlockHash> next = store(3);
  EXPECT_EQ(*engine_.client.retain("agent 7", next.back(), 3600), 8u);
  fill_the_pool(200);
  EXPECT_EQ(*engine_.client.lookup(hashes), 0u);
  EXPECT_EQ(*engine_.client.lookup(next), 8u);
  EXPECT_EQ(*engine_.client.retain("agent 7", next.back(), 0), 0u);
  fill_the_pool(300);
  EXPECT_EQ(*engine_.client.lookup(next), 0u);
}

TEST_F(ClientContextTest, RetainedPrefixesLockNothing) {
  // More sessions than half of the pool has room for: the first ones give way.
  std::vector<std::vector<BlockHash>> all;
  for (std::uint64_t i = 0; i < 8; ++i) {
    all.push_back(store(i + 1));
    EXPECT_EQ(*engine_.client.retain("agent " + std::to_string(i), all.back().back(), 3600), 8u);
  }
  fill_the_pool(100);
  for (std::uint64_t i = 0; i < 8; ++i)
    EXPECT_EQ(*engine_.client.lookup(all[i]), i < 4 ? 0u : 8u) << i;
  // A chain as long as the pool is stored all the same.
  const std::vector<BlockHash> whole = engine_.client.hash_tokens(tokens_of(999, 4 * 60));
  for (std::size_t at = 0; at < 60; at += 4) {
    const std::span<const BlockHash> part(whole.data() + at, 4);
    ASSERT_EQ(engine_.client
                  .store(engine_.cache, at == 0 ? nullptr : &whole[at - 1], part,
                         std::span<const PageId>(kPages, 4))
                  ->blocks,
              4u)
        << at;
  }
  EXPECT_EQ(*engine_.client.lookup(whole), 60u);
}

TEST_F(ClientContextTest, WhatCannotBeKeptIsAnErrorThatSaysWhy) {
  const std::vector<BlockHash> hashes = store(1);
  EXPECT_EQ(engine_.client.create_context({7, 7}, 60).error().code, Code::kNotFound);
  EXPECT_EQ(engine_.client.create_context(hashes[0], std::uint64_t{1} << 40).error().code,
            Code::kInvalidArgument);
  EXPECT_EQ(engine_.client.renew_context(99, 60).error().code, Code::kNotFound);
  EXPECT_EQ(engine_.client.retain("s", {7, 7}, 60).error().code, Code::kNotFound);
}

}  // namespace
}  // namespace cachalot::client
