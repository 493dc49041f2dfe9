// What a pool's clients have counted outlives them, and its keepers.
#include "pool/format/slot_totals.h"

#include <gtest/gtest.h>

#include "testing/pool/test_pool.h"

namespace cachalot::pool {
namespace {

constexpr std::uint32_t kSlot = 2;

ClientCounters lookups(std::uint64_t lookups, std::uint64_t refused = 0) {
  ClientCounters values;
  values[ClientCounter::kLookups] = lookups;
  values[ClientCounter::kRefused] = refused;  // in the second line
  return values;
}

std::uint64_t total(const TestPool& pool, ClientCounter counter, std::uint32_t slot = kSlot) {
  return SlotTotals::read(pool.access(), slot).values()[counter];
}

TEST(SlotTotals, OfAPoolInWhichNoClientCountedAreZero) {
  const TestPool pool;
  EXPECT_EQ(SlotTotals::read(pool.access(), kSlot).values(), ClientCounters());
}

TEST(SlotTotals, ATornLineLosesTheLastPublicationOnly) {
  TestPool pool;
  SlotTotals totals;
  for (std::uint64_t i = 1; i <= 5; ++i) {
    totals.publish(pool.access(), kSlot, lookups(10 * i, i));
    EXPECT_EQ(SlotTotals::read(pool.access(), kSlot).values(), lookups(10 * i, i));
  }
  pool.damage(pool.access().layout.client_totals(kSlot, 0));  // the fifth, as the first
  totals = SlotTotals::read(pool.access(), kSlot);
  EXPECT_EQ(totals.values(), lookups(40, 5));
  // The next client writes over the torn copy, not over the one that is whole.
  totals.publish(pool.access(), kSlot, lookups(60, 6));
  EXPECT_EQ(SlotTotals::read(pool.access(), kSlot).values(), lookups(60, 6));
  pool.damage(pool.access().layout.client_totals(kSlot, 0));
  EXPECT_EQ(total(pool, ClientCounter::kLookups), 40u);
}

TEST(SlotTotals, ClientsGoOnCountingWhereTheLastOneOfTheSlotEnded) {
  TestPool pool;
  pool.start_keeper();
  for (std::uint64_t round = 1; round <= 3; ++round) {
    auto client = pool.attach(kSlot);
    pool.put(*client, 100 * round, 4);
    EXPECT_EQ(pool.read(*client, 100 * round, 4), 4u);
    EXPECT_EQ(client->counters()[ClientCounter::kHitBlocks], 4u);
    ASSERT_TRUE(client->detach());
    EXPECT_EQ(total(pool, ClientCounter::kLookups), round);
    EXPECT_EQ(total(pool, ClientCounter::kHitBlocks), 4 * round);
    EXPECT_EQ(total(pool, ClientCounter::kCommitted), 4 * round);
    EXPECT_GT(total(pool, ClientCounter::kReadBytes), 0u);
  }
}

TEST(SlotTotals, OutliveKeepersAndTheirTakeovers) {
  TestPool pool;
  pool.start_keeper();
  ClientOptions options;
  options.pid = 7;  // so that it may attach again
  options.start_time = 70;
  auto client = pool.attach(kSlot, options);
  pool.put(*client, 1, 4);
  EXPECT_EQ(pool.read(*client, 1, 4), 4u);
  client->renew();
  EXPECT_EQ(total(pool, ClientCounter::kHitBlocks), 4u);
  pool.kill_keeper();
  pool.start_keeper();
  EXPECT_EQ(total(pool, ClientCounter::kHitBlocks), 4u);
  // It attaches again, and counts on: nothing is counted twice.
  client->renew();
  EXPECT_TRUE(client->is_lost());
  pool.put(*client, 10, 1);
  EXPECT_EQ(pool.read(*client, 10, 1), 1u);
  client->renew();
  EXPECT_EQ(client->counters()[ClientCounter::kReattachments], 1u);
  EXPECT_EQ(total(pool, ClientCounter::kHitBlocks), 5u);
  ASSERT_TRUE(client->detach());
  pool.stop_keeper();
  pool.start_keeper();
  EXPECT_EQ(total(pool, ClientCounter::kHitBlocks), 5u);
}

TEST(SlotTotals, AClientThatLeavesWhenNoKeeperIsThereHasCountedAllTheSame) {
  TestPool pool;
  pool.start_keeper();
  auto client = pool.attach(kSlot);
  pool.put(*client, 1, 2);
  pool.kill_keeper();
  EXPECT_EQ(pool.read(*client, 1, 2), 2u);
  client.reset();
  EXPECT_EQ(total(pool, ClientCounter::kHitBlocks), 2u);
}

TEST(SlotTotals, AClientThatWasNotLetInWritesNothing) {
  TestPool pool;
  pool.start_keeper();
  {
    auto client = pool.attach(kSlot);
    pool.put(*client, 1, 3);
    EXPECT_EQ(pool.read(*client, 1, 3), 3u);
  }
  pool.stop_keeper();
  EXPECT_FALSE(pool.try_attach(kSlot));
  EXPECT_EQ(total(pool, ClientCounter::kHitBlocks), 3u);
}

// What the user of a client counts itself is part of it.
TEST(SlotTotals, TakeWhatTheUserOfAClientCounts) {
  TestPool pool;
  pool.start_keeper();
  std::uint64_t own = 7;
  ClientOptions options;
  options.add_counters = [&](ClientCounters& all) { all[ClientCounter::kLookups] += own; };
  auto client = pool.attach(kSlot, options);
  client->renew();
  EXPECT_EQ(total(pool, ClientCounter::kLookups), 7u);
  own = 9;
  ASSERT_TRUE(client->detach());
  EXPECT_EQ(total(pool, ClientCounter::kLookups), 9u);
}

TEST(KeeperInfo, SaysHowTheKeeperServes) {
  TestPool pool;
  KeeperOptions options;
  options.policy = "fifo";
  options.ttl_ns = 90'000'000'000;
  options.version = "1.2.3-a-version-that-is-long";
  options.priorities = {{{1, 2}, 3}};
  options.unix_s = [] { return std::uint64_t{1'700'000'000}; };
  pool.start_keeper(options);
  const auto info =
      pool.line_at<KeeperInfoLine>(pool.access().layout.keeper_info(pool.keeper().epoch() - 1));
  EXPECT_EQ(info.epoch, 1u);
  EXPECT_STREQ(info.policy, "fifo");
  EXPECT_STREQ(info.version, "1.2.3-a-ver");
  EXPECT_EQ(info.ttl_ns, options.ttl_ns);
  EXPECT_EQ(info.pins, 0u);
  EXPECT_EQ(info.priorities, 1u);
  EXPECT_EQ(info.since_unix_s, 1'700'000'000u);
}

}  // namespace
}  // namespace cachalot::pool
