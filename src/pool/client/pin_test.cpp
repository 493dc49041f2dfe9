// Pinned reads: what was looked up under a pin stays until it ends, whichever process dies meanwhile.
#include "testing/pool/test_faults.h"

namespace cachalot::pool {
namespace {

class PinTest : public FaultTest {
 protected:
  std::unique_ptr<Client> reader() {
    ClientOptions options = as_process(20);
    options.pins = true;
    return pool_.attach(1, options);
  }
  // Stores so much that nothing of before is published any more. All that goes meanwhile rests while
  // a client pins, so that storing has a limit.
  void churn(Client& writer) {
    for (std::uint64_t round = 0; round < 5; ++round) pool_.put(writer, next_ += 100, 16);
  }
  std::uint64_t next_ = 1000;
};

TEST_F(PinTest, WhatWasLookedUpAfterAPinStaysUntilItEnds) {
  const auto writer = pool_.attach(0, as_process(7));
  const auto client = reader();
  pool_.put(*writer, 1, 8);
  const auto pin = client->pin();
  ASSERT_TRUE(pin);
  BlockHash hashes[8];
  Found found[8];
  for (int i = 0; i < 8; ++i) hashes[i] = hash_of(1 + i);
  ASSERT_EQ(client->lookup(hashes, found), 8u);
  churn(*writer);
  Found now[8];
  EXPECT_EQ(client->lookup(hashes, now), 0u);  // evicted long ago
  EXPECT_GT(count(KeeperCounter::kLimbo), 0u);
  for (int i = 0; i < 8; ++i) {
    const auto expected = payload_of(1 + i, found[i].entry.length);
    std::vector<std::byte> bytes(found[i].entry.length);
    std::uint64_t at = 0;
    pool_.access().for_each_extent(found[i].entry.block, bytes.size(),
                                   [&](std::byte* from, std::uint64_t n) {
                                     std::memcpy(bytes.data() + at, from, n);
                                     at += n;
                                   });
    EXPECT_EQ(bytes, expected) << i;
  }
  client->unpin(*pin);
  pool_.keeper().tend();
  EXPECT_EQ(count(KeeperCounter::kLimbo), 0u);
  EXPECT_TRUE(pool_.keeper().is_valid());
}

TEST_F(PinTest, TheOldestOfSeveralPinsCounts) {
  const auto writer = pool_.attach(0, as_process(7));
  const auto client = reader();
  pool_.put(*writer, 1, 2);
  const auto first = client->pin(), second = client->pin();
  churn(*writer);
  pool_.keeper().tend();  // looks at the pins after the last tombstone
  const auto third = client->pin();
  client->unpin(*second);
  pool_.keeper().tend();
  EXPECT_GT(count(KeeperCounter::kLimbo), 0u);
  client->unpin(*first);
  pool_.keeper().tend();
  EXPECT_EQ(count(KeeperCounter::kLimbo), 0u);  // the third came after the tombstones
  client->unpin(*third);
}

TEST_F(PinTest, APinOutlivesItsKeeper) {
  const auto writer = pool_.attach(0, as_process(7));
  const auto client = reader();
  pool_.put(*writer, 1, 4);
  const auto pin = client->pin();
  pool_.kill_keeper();
  start();
  EXPECT_GT(count(KeeperCounter::kLimbo), 0u);
  expect_counts(0, count(KeeperCounter::kQuarantined));
  ASSERT_TRUE(client->reattach(0));
  EXPECT_GT(count(KeeperCounter::kLimbo), 0u);
  client->unpin(*pin);
  pool_.keeper().tend();
  EXPECT_EQ(count(KeeperCounter::kLimbo), 0u);
}

// What it says of its client cannot be read then: the client's own line says that it pins.
TEST_F(PinTest, APinOutlivesAKeeperThatDiesInsideItsLineOfTheClient) {
  const auto writer = pool_.attach(0, as_process(7));
  const auto client = reader();
  pool_.put(*writer, 1, 4);
  const auto pin = client->pin();
  ASSERT_TRUE(pin);
  const std::uint64_t view = pool_.access().layout.view_line(keeper_slot(), 1);
  pool_.kill_keeper();
  pool_.damage(view);
  start();
  EXPECT_GT(count(KeeperCounter::kLimbo), 0u);
  pool_.kill_keeper();
  start();
  EXPECT_GT(count(KeeperCounter::kLimbo), 0u);
  ASSERT_TRUE(client->reattach(0));
  EXPECT_GT(count(KeeperCounter::kLimbo), 0u);
  client->unpin(*pin);
  pool_.keeper().tend();
  EXPECT_EQ(count(KeeperCounter::kLimbo), 0u);
}

// A client that gives up an attach states in its line that it stores no more; it may still read.
TEST_F(PinTest, APinOutlivesAnAttachmentThatNobodyAnswered) {
  const auto writer = pool_.attach(0, as_process(7));
  const auto client = reader();
  pool_.put(*writer, 1, 4);
  const auto pin = client->pin();
  ASSERT_TRUE(pin);
  Found found[1];
  const BlockHash hash = hash_of(1);
  ASSERT_EQ(client->lookup({&hash, 1}, found), 1u);
  pool_.kill_keeper();
  start();
  pool_.let_keeper_sleep(true);
  EXPECT_EQ(client->reattach(0).error().code, Code::kNoKeeper);
  pool_.let_keeper_sleep(false);
  pool_.keeper().tend();
  ASSERT_TRUE(writer->reattach(0));
  ASSERT_TRUE(writer->requests().evict(hash));
  const auto filling = payload_of(99, 256);
  Verdict verdict{};
  for (std::uint64_t name = 5000; name < 5300; ++name) {
    (void)writer->put(nullptr, {{{hash_of(name), filling}}}, {&verdict, 1});
  }
  EXPECT_GT(count(KeeperCounter::kLimbo), 0u);
  const auto expected = payload_of(1, found[0].entry.length);
  std::vector<std::byte> bytes;
  pool_.access().for_each_extent(
      found[0].entry.block, expected.size(),
      [&](std::byte* from, std::uint64_t n) { bytes.insert(bytes.end(), from, from + n); });
  EXPECT_TRUE(bytes == expected) << "somebody else's";
  ASSERT_TRUE(client->reattach(0));
  EXPECT_GT(count(KeeperCounter::kLimbo), 0u);
  client->unpin(*pin);
  pool_.keeper().tend();
  EXPECT_EQ(count(KeeperCounter::kLimbo), 0u);
  EXPECT_TRUE(pool_.keeper().is_valid());
}

TEST_F(PinTest, ADeadReadersPinEndsWithEvidence) {
  const auto writer = pool_.attach(0, as_process(7));
  const auto client = reader();
  pool_.put(*writer, 1, 4);
  (void)client->pin();
  churn(*writer);
  for (int i = 0; i < 300; ++i) {
    pool_.keeper().tend();
    writer->renew();
  }
  EXPECT_GT(count(KeeperCounter::kLimbo), 0u);  // silent is not dead
  evidence_.gone.push_back(process(20));
  pool_.keeper().tend();
  pool_.keeper().tend();
  EXPECT_EQ(count(KeeperCounter::kLimbo), 0u);
}

TEST_F(PinTest, WhoKeepsAskingForBlocksUnderAPinDoesNotEmptyThePool) {
  const auto writer = pool_.attach(0, as_process(7));
  const auto client = reader();
  for (std::uint64_t round = 0; round < 5; ++round) pool_.put(*writer, next_ += 100, 16);
  const auto pin = client->pin();
  const auto bytes = payload_of(1, 256);
  Verdict verdict{};
  for (int i = 0; i < 500; ++i)
    (void)writer->put(nullptr, {{{hash_of(5000 + i), bytes}}}, {&verdict, 1});
  // max_grants
  EXPECT_GE(count(KeeperCounter::kLive) + 16, pool_.access().geometry.capacity_blocks);
  client->unpin(*pin);
  pool_.keeper().tend();
  ASSERT_TRUE(writer->put(nullptr, {{{hash_of(9999), bytes}}}, {&verdict, 1}));
  EXPECT_EQ(verdict, Verdict::kCommitted);
}

TEST_F(PinTest, WhoDidNotSayThatItPinsMayNot) {
  const auto client = pool_.attach(0, as_process(7));
  EXPECT_EQ(client->pin().error().code, Code::kUnsupported);
}

}  // namespace
}  // namespace cachalot::pool
