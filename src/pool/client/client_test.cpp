// What a client does when things are not as it hopes.

#include "pool/client/client.h"

#include <gtest/gtest.h>

#include "testing/pool/test_pool.h"

namespace cachalot::pool {
namespace {

ClientOptions with_checksums() {
  ClientOptions options;
  options.verify_checksums = options.write_checksums = true;
  return options;
}

class ClientTest : public testing::Test {
 protected:
  ClientTest() { make(small_geometry()); }
  void make(const Geometry& geometry) {
    pool_ = std::make_unique<TestPool>(geometry);
    pool_->start_keeper();
  }
  static std::uint64_t count(const Client& client, ClientCounter counter) {
    return client.counters()[counter];
  }
  std::byte* payload_at(const BlockHash& hash, std::uint64_t byte = 0) {
    std::byte* at = nullptr;
    pool_->access().for_each_extent(pool_->entry_of(hash).block, byte + 1,
                                    [&](std::byte* begin, std::uint64_t n) { at = begin + n - 1; });
    return at;
  }

  std::unique_ptr<TestPool> pool_;
};

TEST_F(ClientTest, EveryLengthComesBackAsItWas) {
  for (const bool checksums : {false, true}) {
    ClientOptions options;
    options.verify_checksums = options.write_checksums = checksums;
    const auto client = pool_->attach(0, options);
    for (std::uint32_t length = 1; length <= 200; ++length) {
      const std::uint64_t name = 1000 * (checksums ? 1 : 2) + length;
      const BlockHash hash = hash_of(name);
      const std::vector<std::byte> bytes = payload_of(name, length);
      Verdict verdict{};
      const PutItem item{hash, bytes};
      ASSERT_TRUE(client->put(nullptr, {&item, 1}, {&verdict, 1}));
      ASSERT_EQ(verdict, Verdict::kCommitted);
      std::vector<std::byte> back(length + 1, std::byte{0x5a});
      const Result<std::uint32_t> got = client->get(hash, back);
      ASSERT_TRUE(got) << got.error().message;
      EXPECT_EQ(*got, length);
      EXPECT_EQ(back.back(), std::byte{0x5a});  // nothing is written behind the block
      back.pop_back();
      EXPECT_EQ(back, bytes) << length;
    }
  }
}

TEST_F(ClientTest, BlocksThatSpanStripesOfThreeDevicesComeBackAsTheyWere) {
  Geometry g = small_geometry(6, 4);
  g.devices = 3;
  g.block_bytes = 3 * memory::kStripeBytes / 2 + 64;
  make(g);
  const auto client = pool_->attach(0, with_checksums());
  for (std::uint64_t name = 1; name <= 6; ++name) {
    const std::vector<std::byte> bytes = payload_of(name, g.block_bytes - name * 13);
    const PutItem item{hash_of(name), bytes};
    Verdict verdict{};
    ASSERT_TRUE(client->put(nullptr, {&item, 1}, {&verdict, 1}));
    ASSERT_EQ(verdict, Verdict::kCommitted);
    std::vector<std::byte> back(bytes.size());
    ASSERT_TRUE(client->get(hash_of(name), back));
    EXPECT_TRUE(back == bytes) << name;
  }
  EXPECT_EQ(count(*client, ClientCounter::kDamagedReads), 0u);
}

TEST_F(ClientTest, ABufferThatIsTooSmallIsSaid) {
  const auto client = pool_->attach(0);
  pool_->put(*client, 2, 1);
  std::vector<std::byte> buffer(pool_->size_of(2) - 1);
  const Result<std::uint32_t> got = client->get(hash_of(2), buffer);
  ASSERT_FALSE(got);
  EXPECT_EQ(got.error().code, Code::kNoSpace);
  EXPECT_NE(std::string(got.error().message).find(std::to_string(pool_->size_of(2))),
            std::string::npos);
  EXPECT_EQ(client->get(hash_of(3), buffer).error().code, Code::kNotFound);
}

TEST_F(ClientTest, ItemsOutOfRangeAreRefusedBeforeAnythingIsWritten) {
  const auto client = pool_->attach(0);
  const std::vector<std::byte> bytes(257);
  Verdict verdict{};
  for (const std::size_t n : {0ul, 257ul}) {
    const PutItem item{hash_of(1), {bytes.data(), n}};
    const Status status = client->put(nullptr, {&item, 1}, {&verdict, 1});
    ASSERT_FALSE(status);
    EXPECT_EQ(status.error().code, Code::kInvalidArgument);
  }
  EXPECT_EQ(count(*client, ClientCounter::kWrittenBytes), 0u);
}

TEST_F(ClientTest, OptionsOutOfRangeAreRefused) {
  ClientOptions options;
  options.host = 1;
  EXPECT_EQ(pool_->try_attach(0, options).error().code, Code::kInvalidArgument);
  options = {};
  options.grant_target = 0;
  EXPECT_EQ(pool_->try_attach(0, options).error().code, Code::kInvalidArgument);
  EXPECT_EQ(pool_->try_attach(3).error().code, Code::kInvalidArgument);
}

TEST_F(ClientTest, WithoutAKeeperNobodyAttaches) {
  pool_->stop_keeper();
  EXPECT_EQ(pool_->try_attach(0).error().code, Code::kNoKeeper);
  pool_->start_keeper();
  pool_->let_keeper_sleep(true);
  ClientOptions options;
  options.timeout_ns = 1'000'000;
  EXPECT_EQ(pool_->try_attach(0, options).error().code, Code::kNoKeeper);
}

TEST_F(ClientTest, DuplicatesGoBackToTheGrant) {
  const auto a = pool_->attach(0), b = pool_->attach(1);
  pool_->put(*a, 1, 10);
  pool_->put(*b, 100, 1);
  const std::uint32_t held = b->grants().held();
  for (int i = 0; i < 20; ++i) {
    for (const Verdict v : pool_->put(*b, 1, 10)) EXPECT_EQ(v, Verdict::kDuplicate);
  }
  EXPECT_EQ(b->grants().held(), held);
  EXPECT_EQ(pool_->put(*b, 200, 5).back(), Verdict::kCommitted);  // and can be used
  EXPECT_EQ(count(*b, ClientCounter::kDuplicates), 200u);
}

TEST_F(ClientTest, WithoutABlockToBeHadPutSaysSoAndNothingIsLost) {
  make(small_geometry(4, 4));
  RawClient hog(*pool_, 1);
  ASSERT_EQ(hog.grant(8).size(), 8u);
  const auto client = pool_->attach(0);
  const std::vector<std::byte> bytes(64);
  const PutItem item{hash_of(1), bytes};
  Verdict verdict{};
  const Status status = client->put(nullptr, {&item, 1}, {&verdict, 1});
  ASSERT_FALSE(status);
  EXPECT_EQ(status.error().code, Code::kNoSpace);
  hog.ask(RawClient::head_of(Op::kDetach));
  EXPECT_TRUE(client->put(nullptr, {&item, 1}, {&verdict, 1}));
  EXPECT_EQ(verdict, Verdict::kCommitted);
}

TEST_F(ClientTest, ADamagedByteIsAMissAndCounted) {
  const auto client = pool_->attach(0, with_checksums());
  pool_->put(*client, 1, 5);
  *payload_at(hash_of(3), 1) ^= std::byte{1};
  EXPECT_EQ(pool_->read(*client, 1, 5), 2u);
  EXPECT_EQ(count(*client, ClientCounter::kDamagedReads), 1u);
  EXPECT_EQ(count(*client, ClientCounter::kStaleReads), 0u);
}

TEST_F(ClientTest, ABlockThatIsReusedBetweenLookupAndReadIsAMissAndCounted) {
  for (const bool checksums : {false, true}) {
    make(small_geometry(4, 4));
    ClientOptions options;
    options.verify_checksums = options.write_checksums = checksums;
    const auto reader = pool_->attach(0, options), writer = pool_->attach(1, options);
    pool_->put(*writer, 1, 2);
    const BlockHash hashes[] = {hash_of(1), hash_of(2)};
    Found found[2];
    ASSERT_EQ(reader->lookup(hashes, found), 2u);
    ASSERT_TRUE(writer->requests().evict(hash_of(2)));
    for (std::uint64_t name = 10; name < 40; ++name) pool_->put(*writer, name, 1);
    std::vector<std::byte> buffer(256);
    std::byte* const to[] = {buffer.data(), buffer.data()};
    EXPECT_EQ(reader->read(found, to), 0u);
    EXPECT_EQ(count(*reader, ClientCounter::kStaleReads), 1u);
    EXPECT_EQ(count(*reader, ClientCounter::kDamagedReads), 0u);
    EXPECT_EQ(reader->get(hash_of(2), buffer).error().code, Code::kNotFound);
  }
}

TEST_F(ClientTest, ATakeoverBetweenLookupAndReadIsAMissAndTheNextLookupAHit) {
  const auto client = pool_->attach(0);
  pool_->put(*client, 1, 1);
  const BlockHash hash = hash_of(1);
  Found found;
  ASSERT_EQ(client->lookup({&hash, 1}, {&found, 1}), 1u);
  pool_->kill_keeper();
  pool_->start_keeper();
  std::vector<std::byte> buffer(256);
  std::byte* const to = buffer.data();
  EXPECT_EQ(client->read({&found, 1}, {&to, 1}), 0u);
  EXPECT_EQ(pool_->read(*client, 1, 1), 1u);
}

TEST_F(ClientTest, WithoutItsKeeperAClientReadsOnAndWritesNoMore) {
  const auto client = pool_->attach(0);
  pool_->put(*client, 1, 10);
  pool_->stop_keeper();
  std::vector<std::byte> buffer(256);
  // Many more hits than can be reported without a keeper.
  for (int i = 0; i < 2000; ++i) ASSERT_TRUE(client->get(hash_of(1 + i % 10), buffer));
  EXPECT_EQ(pool_->read(*client, 1, 10), 10u);
  EXPECT_GT(count(*client, ClientCounter::kLostReports), 1000u);
  const std::vector<std::byte> bytes(64);
  const PutItem item{hash_of(500), bytes};
  Verdict verdict{};
  const Status status = client->put(nullptr, {&item, 1}, {&verdict, 1});
  ASSERT_FALSE(status);
  EXPECT_EQ(status.error().code, Code::kNoKeeper);
  EXPECT_EQ(client->requests().evict(hash_of(1)).error().code, Code::kNoKeeper);
  EXPECT_TRUE(client->detach());  // its line says so to the next keeper
}

TEST_F(ClientTest, AReaderNeverWaitsForAKeeperThatSleeps) {
  ClientOptions options;
  options.timeout_ns = ~std::uint64_t{0} / 4;  // a wait would last for ever
  const auto client = pool_->attach(0, options);
  pool_->put(*client, 1, 10);
  pool_->let_keeper_sleep(true);
  std::vector<std::byte> buffer(256);
  for (int i = 0; i < 2000; ++i) ASSERT_TRUE(client->get(hash_of(1 + i % 10), buffer));
  pool_->let_keeper_sleep(false);
  EXPECT_EQ(pool_->put(*client, 100, 3).back(), Verdict::kCommitted);
}

TEST_F(ClientTest, AnAnswerThatComesAfterItsCallerHasGoneReachesNobody) {
  ClientOptions options;
  options.timeout_ns = 2'000'000;
  const auto client = pool_->attach(0, options);
  pool_->put(*client, 1, 3);
  pool_->put(*client, 10, 1);
  pool_->let_keeper_sleep(true);
  {
    // On the heap, so that a late verdict would be a write to freed memory.
    auto verdicts = std::make_unique<Verdict[]>(1);
    const std::vector<std::byte> bytes(64);
    const PutItem item{hash_of(20), bytes};
    const Status status = client->put(nullptr, {&item, 1}, {verdicts.get(), 1});
    ASSERT_FALSE(status);
    EXPECT_EQ(status.error().code, Code::kTimeout);
  }
  EXPECT_EQ(client->requests().evict(hash_of(1)).error().code, Code::kTimeout);
  pool_->let_keeper_sleep(false);
  // The answer to the first eviction (3 blocks) is not taken for the second one's.
  const Result<std::uint32_t> evicted = client->requests().evict(hash_of(10));
  ASSERT_TRUE(evicted) << evicted.error().message;
  EXPECT_EQ(*evicted, 1u);
  EXPECT_EQ(count(*client, ClientCounter::kCommitted), 5u);  // W1: known in the end
}

TEST_F(ClientTest, AfterGoodbyeCallsFailAtOnce) {
  const auto client = pool_->attach(0);
  pool_->put(*client, 1, 1);
  ASSERT_TRUE(client->detach());
  EXPECT_TRUE(client->detach());
  EXPECT_EQ(client->requests().ping().error().code, Code::kNoKeeper);
  EXPECT_EQ(client->requests().evict(hash_of(1)).error().code, Code::kNoKeeper);
  const std::vector<std::byte> bytes(64);
  EXPECT_EQ(client->post_put(nullptr, {hash_of(5), bytes}).error().code, Code::kNoKeeper);
}

TEST_F(ClientTest, WhoDetachedFromAKeeperThatWasGoneDoesNotComeBackWithTheNextOne) {
  const auto client = pool_->attach(0);
  pool_->kill_keeper();
  pool_->start_keeper();
  client->renew();  // sees that another one rules
  ASSERT_TRUE(client->is_lost());
  EXPECT_EQ(client->detach().error().code, Code::kNoKeeper);
  const std::vector<std::byte> bytes(64);
  const PutItem item{hash_of(5), bytes};
  Verdict verdict{};
  EXPECT_EQ(client->put(nullptr, {&item, 1}, {&verdict, 1}).error().code, Code::kNoKeeper);
  EXPECT_EQ(client->reattach(0).error().code, Code::kNoKeeper);
  EXPECT_EQ(
      pool_->line_at<ClientLine>(pool_->access().layout.client_line(0)).flags & kClientAttached,
      0u);
}

TEST_F(ClientTest, ManyPutsUnderWayAllArrive) {
  make(small_geometry(1000, 300));
  const auto client = pool_->attach(0);
  const std::vector<std::byte> bytes(64);
  for (std::uint64_t name = 0; name < 600; ++name)
    ASSERT_TRUE(client->post_put(nullptr, {hash_of(name), bytes}));
  ASSERT_TRUE(client->drain());
  EXPECT_EQ(count(*client, ClientCounter::kCommitted), 600u);
  EXPECT_EQ(client->requests().outstanding() == 0 || client->requests().poll() <= 1, true);
}

TEST_F(ClientTest, AClientWhoseOwnLineWasDamagedAttachesWithAnIncarnationThatWasNeverServed) {
  for (int i = 0; i < 3; ++i) {
    const auto client = pool_->attach(0);
    pool_->put(*client, 10u * static_cast<unsigned>(i), 2);
    ASSERT_TRUE(client->detach());
    pool_->damage(pool_->access().layout.client_line(0));
  }
  EXPECT_EQ(pool_->read(*pool_->attach(1), 0, 2), 2u);
}

TEST_F(ClientTest, TheLastLineIsPaddedWithZeros) {
  const auto client = pool_->attach(0, with_checksums());
  for (const std::uint32_t length : {1u, 70u, 200u}) {
    const std::vector<std::byte> bytes = payload_of(length, length);
    const PutItem item{hash_of(length), bytes};
    Verdict verdict{};
    ASSERT_TRUE(client->put(nullptr, {&item, 1}, {&verdict, 1}));
    std::vector<std::byte> padded = bytes;
    padded.resize(padded_bytes(length));
    for (std::size_t i = 0; i < padded.size(); ++i) EXPECT_EQ(*payload_at(item.hash, i), padded[i]);
    EXPECT_EQ(pool_->entry_of(item.hash).checksum,
              memory::hash_lines(padded.data(), padded.size()));
  }
}

TEST_F(ClientTest, WhoOnlyReadsOpensNoNamespace) {
  ClientOptions reads = in_namespace("mistyped");
  reads.reads_only = true;
  ClientOptions operates = in_namespace("mistyped as well");
  operates.is_operator = true;
  for (const ClientOptions& options : {reads, operates}) {
    const auto client = pool_->attach(0, options);
    EXPECT_EQ(client->namespace_id(), 0u);
    EXPECT_EQ(pool_->read(*client, 1, 3), 0u);
    EXPECT_EQ(client->requests().evict(hash_of(1)).error().code, Code::kNotFound);
    EXPECT_TRUE(client->requests().ping());
  }
  EXPECT_EQ(pool_->keeper().counters()[KeeperCounter::kNamespaces], 0u);
  pool_->put(*pool_->attach(0, in_namespace("mistyped")), 1, 3);
  const auto client = pool_->attach(1, reads);
  EXPECT_NE(client->namespace_id(), 0u);
  EXPECT_EQ(pool_->read(*client, 1, 3), 3u);
  EXPECT_EQ(*client->requests().evict(hash_of(1)), 3u);
}

// Storage that has blocks of one namespace.
class OneNamespace final : public StorageDesk {
 public:
  explicit OneNamespace(const std::string& fingerprint)
      : digest_(block_hash::make_namespace(fingerprint).digest) {}
  StorageAnswer answer(const StorageQuestion&) override { return {}; }
  bool has_blocks_of(const BlockHash& space) override { return space == digest_; }

 private:
  const BlockHash digest_;
};

TEST_F(ClientTest, AReaderOpensANamespaceThatStorageHasBlocksOf) {
  OneNamespace desk("stored");
  pool_->keeper().set_storage_desk(&desk);
  for (const char* const name : {"stored", "mistyped"}) {
    ClientOptions options = in_namespace(name);
    options.reads_only = true;
    EXPECT_EQ(pool_->attach(0, options)->namespace_id() != 0, options.fingerprint == "stored");
  }
  EXPECT_EQ(pool_->keeper().counters()[KeeperCounter::kNamespaces], 1u);
  pool_->keeper().set_storage_desk(nullptr);
}

TEST_F(ClientTest, WhoseSlotItIsDoesNotFenceItself) {
  const auto client = pool_->attach(0), other = pool_->attach(1);
  EXPECT_EQ(client->requests().fence(0).error().code, Code::kNotFound);
  EXPECT_EQ(client->requests().fence(1).error().code, Code::kBusy);
  EXPECT_EQ(client->requests().fence(2).error().code, Code::kNotFound);
}

// As Pool knows it of a process that was killed: its line goes on saying that it serves.
TEST_F(ClientTest, AKeeperThatIsDeadIsNotWaitedFor) {
  bool is_dead = false;
  ClientOptions options;
  options.timeout_ns = 1'000'000;
  options.keeper_has_ended = [&](std::uint32_t) { return is_dead; };
  const auto client = pool_->attach(0, options);
  pool_->let_keeper_sleep(true);
  EXPECT_EQ(client->requests().ping().error().code, Code::kTimeout);
  is_dead = true;
  const std::uint64_t since_ns = pool_->clock().now_ns();
  EXPECT_EQ(client->requests().ping().error().code, Code::kNoKeeper);
  EXPECT_EQ(client->requests().ping().error().code, Code::kNoKeeper);
  EXPECT_EQ(pool_->try_attach(1, options).error().code, Code::kNoKeeper);
  EXPECT_LT(pool_->clock().now_ns() - since_ns, options.timeout_ns);
}

// It has announced itself, and serves a moment later: calls in between need not fail.
TEST_F(ClientTest, AKeeperThatIsTakingOverIsWaitedFor) {
  ClientOptions options;
  options.timeout_ns = 1'000'000;
  const auto client = pool_->attach(0, options);
  pool_->kill_keeper();
  KeeperLine next{};
  next.epoch = 2;
  next.min_epoch = 1;
  const std::uint64_t place = pool_->access().layout.keeper_line(1);
  pool_->put_line(place, next);
  EXPECT_EQ(client->requests().ping().error().code, Code::kNoKeeper);  // it learns of it
  const std::uint64_t since_ns = pool_->clock().now_ns();
  EXPECT_EQ(client->requests().ping().error().code, Code::kNoKeeper);
  EXPECT_GE(pool_->clock().now_ns() - since_ns, options.timeout_ns);
  // One that has ended in good order is not.
  next.min_epoch = 2;
  pool_->put_line(place, next);
  const std::uint64_t ended_ns = pool_->clock().now_ns();
  EXPECT_EQ(client->requests().ping().error().code, Code::kNoKeeper);
  EXPECT_LT(pool_->clock().now_ns() - ended_ns, options.timeout_ns);
}

TEST_F(ClientTest, ANewClientBeginsWithCountersOfItsOwn) {
  const auto published = [&] {
    ClientCounters counters;
    EXPECT_TRUE(counters.read(pool_->access().region, pool_->access().layout.client_counters(0)));
    return counters[ClientCounter::kPuts];
  };
  const auto first = pool_->attach(0);
  pool_->put(*first, 1, 3);
  ASSERT_TRUE(first->detach());
  EXPECT_EQ(published(), 3u);
  const auto second = pool_->attach(0);
  EXPECT_EQ(published(), 0u);
}

}  // namespace
}  // namespace cachalot::pool
