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

TEST_F(ClientContextTest, WhatCannotBeKeptIsAnErrorThatSaysWhy) {
  const std::vector<BlockHash> hashes = store(1);
  EXPECT_EQ(engine_.client.create_context({7, 7}, 60).error().code, Code::kNotFound);
  EXPECT_EQ(engine_.client.create_context(hashes[0], std::uint64_t{1} << 40).error().code,
            Code::kInvalidArgument);
  EXPECT_EQ(engine_.client.renew_context(99, 60).error().code, Code::kNotFound);
}

}  // namespace
}  // namespace cachalot::client
