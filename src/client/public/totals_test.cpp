// What an engine counts is part of its pool's totals.
#include <gtest/gtest.h>

#include <numeric>

#include "pool/pool.h"
#include "testing/client/test_cluster.h"

namespace cachalot::client {
namespace {

using pool::ClientCounter;

TEST(Totals, AnEnginesLookupsAndLoadsStayInThePoolWhenItHasDetached) {
  Cluster cluster;
  const Result<pool::Pool> pool = pool::Pool::open({cluster.path()}, {.read_only = true});
  ASSERT_TRUE(pool) << pool.error().message;
  for (std::uint64_t round = 1; round <= 2; ++round) {
    Engine engine(cluster.client_options());
    const std::vector<BlockHash> hashes = engine.client.hash_tokens(tokens_of(round, 4 * 4));
    std::vector<PageId> pages(hashes.size());
    std::iota(pages.begin(), pages.end(), 0);
    ASSERT_EQ(*engine.client.load(engine.cache, hashes, pages), 0u);
    ASSERT_TRUE(engine.client.store(engine.cache, nullptr, hashes, pages));
    ASSERT_EQ(*engine.client.load(engine.cache, hashes, pages), 4u);
    const Statistics own = engine.client.statistics();
    ASSERT_TRUE(engine.client.detach());
    const pool::ClientCounters totals = pool->state().read_totals();
    EXPECT_EQ(totals[ClientCounter::kLookups], round * own.lookups);
    EXPECT_EQ(totals[ClientCounter::kLookedUpBlocks], round * own.looked_up_blocks);
    EXPECT_EQ(totals[ClientCounter::kHitBlocks], round * 4);
    EXPECT_EQ(totals[ClientCounter::kReadBlocks], round * 4);
    EXPECT_EQ(totals[ClientCounter::kReadBytes], round * own.loaded_bytes);
    EXPECT_EQ(totals[ClientCounter::kCommitted], round * 4);
    EXPECT_EQ(totals[ClientCounter::kWrittenBytes], round * own.stored_bytes);
  }
}

}  // namespace
}  // namespace cachalot::client
