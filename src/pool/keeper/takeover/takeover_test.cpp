// A keeper follows another: what it finds, keeps, drops and does not touch.

#include <gtest/gtest.h>

#include <set>

#include "testing/pool/test_pool.h"

namespace cachalot::pool {
namespace {

class TakeoverTest : public testing::Test {
 protected:
  TakeoverTest() { make(small_geometry()); }
  void make(const Geometry& geometry) {
    pool_ = std::make_unique<TestPool>(geometry);
    pool_->start_keeper();
  }
  void take_over() {
    pool_->kill_keeper();
    pool_->start_keeper();
    EXPECT_TRUE(pool_->keeper().is_valid());
  }
  std::uint64_t count(KeeperCounter counter) { return pool_->keeper().counters()[counter]; }
  const Layout& layout() const { return pool_->access().layout; }
  std::uint64_t entry_offset(std::uint64_t name) const {
    return layout().entry(pool_->slot_of(hash_of(name)));
  }
  // A client that has stored a chain and detached.
  void store(std::uint64_t first, std::size_t n, const BlockHash* parent = nullptr) {
    const auto client = pool_->attach(0);
    for (const Verdict v : pool_->put(*client, first, n, parent)) ASSERT_EQ(v, Verdict::kCommitted);
  }
  std::size_t found(std::uint64_t first, std::size_t n) {
    return pool_->read(*pool_->attach(1), first, n);
  }

  std::unique_ptr<TestPool> pool_;
};

TEST_F(TakeoverTest, EveryPublishedBlockSurvivesAnyNumberOfKeepers) {
  base::Rng rng(4);
  std::uint64_t next = 0;
  for (int round = 0; round < 30; ++round) {
    const auto client = pool_->attach(0);
    for (int i = 0; i < 10; ++i) {
      const BlockHash parent = hash_of(next - 1);
      pool_->put(*client, next, 1 + rng.below(6),
                 next != 0 && rng.below(2) == 0 ? &parent : nullptr);
      next += 6;
    }
    ASSERT_TRUE(client->detach());
    std::set<std::uint64_t> before;
    for (std::uint64_t name = 0; name < next; ++name) {
      if (pool_->keeper().is_published(hash_of(name), client->namespace_id())) before.insert(name);
    }
    const std::uint32_t epoch = pool_->keeper().epoch();
    round % 2 == 0 ? pool_->stop_keeper() : pool_->kill_keeper();
    pool_->start_keeper();
    ASSERT_TRUE(pool_->keeper().is_valid());
    EXPECT_EQ(pool_->keeper().epoch(), epoch + 1);
    const auto reader = pool_->attach(1);
    for (std::uint64_t name = 0; name < next; ++name) {
      ASSERT_EQ(pool_->keeper().is_published(hash_of(name), 1), before.count(name) == 1) << name;
      if (before.count(name) == 0) continue;
      EXPECT_EQ(pool_->read(*reader, name, 1), 1u);
      EXPECT_EQ(pool_->entry_of(hash_of(name)).epoch, epoch + 1);
    }
    EXPECT_EQ(count(KeeperCounter::kQuarantined), 0u);
  }
}

TEST_F(TakeoverTest, TheTreeIsRebuiltSoThatLeavesGoFirst) {
  store(1, 5);
  take_over();
  const auto client = pool_->attach(0);
  EXPECT_EQ(*client->requests().evict(hash_of(3)), 3u);
  EXPECT_EQ(pool_->read(*client, 1, 5), 2u);
}

TEST_F(TakeoverTest, EveryLineOfTheDirectoryIsWrittenAgain) {
  store(1, 5);
  // What an older keeper may have left in a free slot goes, too.
  Entry leftover{};
  leftover.epoch = 1;
  leftover.state = kEntryFree;
  std::uint32_t free = 0;
  while (pool_->line_at<Entry>(layout().entry(free)).state == kEntryLive) ++free;
  pool_->put_line(layout().entry(free), leftover);
  take_over();
  for (std::uint32_t slot = 0; slot < pool_->access().geometry.directory_slots; ++slot) {
    const auto entry = pool_->line_at<Entry>(layout().entry(slot));
    EXPECT_EQ(entry.epoch, entry.state == kEntryLive ? 2u : 0u);
  }
}

TEST_F(TakeoverTest, TheBlocksOfWhoNeverDetachedAreQuarantinedOverAnyNumberOfKeepers) {
  RawClient holder(*pool_, 0);
  const std::vector<BlockUse> uses = holder.grant(7);
  for (int i = 0; i < 6; ++i) {
    take_over();
    EXPECT_EQ(count(KeeperCounter::kQuarantined), 7u);
    for (const BlockUse& use : uses) {
      const LedgerRecord record = Ledger::read(
          pool_->access(), DirectoryReader(pool_->access()).read_keepers().keeper, use.block);
      EXPECT_EQ(record.state, LedgerState::kQuarantined);
      EXPECT_EQ(record.holder, 0u);
      EXPECT_EQ(record.incarnation, holder.incarnation());
      EXPECT_EQ(record.generation, use.generation);
    }
  }
  RawClient other(*pool_, 1);
  for (const BlockUse& granted : other.grant(200)) {
    for (const BlockUse& use : uses) EXPECT_NE(granted.block, use.block);
  }
}

// The four states of ledger.h, each written by hand.
TEST_F(TakeoverTest, ABlockThatIsGrantedInTheLedgerAndHasAnEntryOfItsGenerationIsPublished) {
  RawClient client(*pool_, 0);
  const std::uint32_t space = client.open_namespace();
  const BlockUse use = client.grant(1)[0];
  const auto granted = pool_->line_at<LedgerLine>(layout().ledger_line(0, use.block));
  ASSERT_EQ(client.commit_one(space, nullptr, RawClient::item(1, use)), Verdict::kCommitted);
  // The keeper died after the entry, before the record.
  pool_->put_line(layout().ledger_line(0, use.block), granted);
  take_over();
  EXPECT_TRUE(pool_->keeper().is_published(hash_of(1), space));
  EXPECT_EQ(count(KeeperCounter::kQuarantined), 0u);
  // W2: a client without an answer asks again, and gets it.
  client.attach();
  EXPECT_EQ(client.commit_one(space, nullptr, RawClient::item(1, use)), Verdict::kCommitted);
}

TEST_F(TakeoverTest, ABlockThatIsLiveInTheLedgerAndHasNoEntryIsFree) {
  store(1, 1);
  const std::uint32_t block = pool_->entry_of(hash_of(1)).block;
  pool_->damage(entry_offset(1));
  take_over();
  EXPECT_EQ(count(KeeperCounter::kLive), 0u);
  EXPECT_EQ(count(KeeperCounter::kFree), pool_->access().geometry.blocks);
  RawClient client(*pool_, 1);
  std::uint32_t generation = 0;
  for (const BlockUse& use : client.grant(200)) {
    if (use.block == block) generation = use.generation;
  }
  EXPECT_EQ(generation, 2u);  // not forgotten
}

TEST_F(TakeoverTest, AnEntryThatIsOlderThanTheLedgerSaysIsNotLive) {  // W4
  RawClient client(*pool_, 0);
  const std::uint32_t space = client.open_namespace();
  const BlockUse use = client.grant(1)[0];
  ASSERT_EQ(client.commit_one(space, nullptr, RawClient::item(1, use)), Verdict::kCommitted);
  // Granted again, and a woken keeper's entry of the use before is back.
  const std::uint64_t offset = layout().ledger_line(0, use.block);
  auto line = pool_->line_at<LedgerLine>(offset);
  line.records[use.block % kLedgerRecordsPerLine] = {use.generation + 1, 5, 2,
                                                     LedgerState::kGranted, 0};
  pool_->put_line(offset, line);
  take_over();
  EXPECT_FALSE(pool_->keeper().is_published(hash_of(1), space));
  EXPECT_EQ(pool_->slot_of(hash_of(1)), DirectoryWriter::kNoSlot);
  EXPECT_EQ(count(KeeperCounter::kQuarantined), 1u);
}

TEST_F(TakeoverTest, ALedgerLineThatWasHalfWrittenQuarantinesItsBlocksExceptThoseThatArePublished) {
  RawClient client(*pool_, 0);
  const std::uint32_t space = client.open_namespace();
  const std::vector<BlockUse> uses = client.grant(3);
  ASSERT_EQ(client.commit_one(space, nullptr, RawClient::item(1, uses[0])), Verdict::kCommitted);
  pool_->damage(layout().ledger_line(0, uses[1].block));
  take_over();
  EXPECT_TRUE(pool_->keeper().is_published(hash_of(1), space));
  EXPECT_EQ(count(KeeperCounter::kQuarantined),
            4u);  // blocks 1 to 4 of the line; block 0 is published
  RawClient other(*pool_, 1);
  for (const BlockUse& granted : other.grant(100)) EXPECT_GT(granted.block, 4u);
}

TEST_F(TakeoverTest, ChildrenOfADamagedEntryGoWithIt) {
  store(1, 6);
  const BlockHash third = hash_of(3);
  store(20, 2, &third);
  store(40, 2);
  pool_->damage(entry_offset(4));
  take_over();
  EXPECT_EQ(found(1, 6), 3u);
  EXPECT_EQ(found(20, 2), 2u);
  EXPECT_EQ(found(40, 2), 2u);
  EXPECT_EQ(count(KeeperCounter::kLive), 7u);
  EXPECT_EQ(pool_->slot_of(hash_of(5)), DirectoryWriter::kNoSlot);
}

TEST_F(TakeoverTest, ParentsInACircleAreDropped) {
  store(1, 3);
  auto root = pool_->line_at<Entry>(entry_offset(1));
  root.parent = pool_->entry_of(hash_of(3)).block;
  pool_->put_line(entry_offset(1), root);
  store(40, 2);
  take_over();
  EXPECT_EQ(count(KeeperCounter::kLive), 2u);
  EXPECT_EQ(found(40, 2), 2u);
}

TEST_F(TakeoverTest, OfTwoEntriesForOneBlockTheNewerUseCounts) {
  store(1, 2);
  // A second entry for the block of 1, under another hash and an older generation.
  Entry older = pool_->entry_of(hash_of(1));
  const BlockHash other = hash_of(900);
  older.hash_low = other.low;
  older.hash_high = other.high;
  older.generation = 0;
  const std::uint32_t slots = pool_->access().geometry.directory_slots;
  const std::uint32_t bucket = home_of(other, older.namespace_id, slots).bucket;
  std::uint32_t slot = bucket;
  while (pool_->line_at<Entry>(layout().entry(slot)).state == kEntryLive) ++slot;
  pool_->put_line(layout().entry(slot), older);
  take_over();
  EXPECT_EQ(found(1, 2), 2u);
  EXPECT_FALSE(pool_->keeper().is_published(other, 1));
  EXPECT_EQ(count(KeeperCounter::kLive), 2u);
}

TEST_F(TakeoverTest, OfTwoEntriesForOneHashOneStaysWithWhatIsBelowIt) {
  store(1, 1);
  store(50, 1);
  // Block 50 claims to be block 1 too.
  const Entry first = pool_->entry_of(hash_of(1));
  Entry second = pool_->entry_of(hash_of(50));
  pool_->damage(entry_offset(50));
  second.hash_low = first.hash_low;
  second.hash_high = first.hash_high;
  const std::uint32_t slots = pool_->access().geometry.directory_slots;
  const Home home = home_of(hash_of(1), first.namespace_id, slots);
  std::uint32_t slot = home.bucket;
  while (slot == home.slot || slot == pool_->slot_of(hash_of(1))) ++slot;
  pool_->put_line(layout().entry(slot), second);
  take_over();
  EXPECT_EQ(count(KeeperCounter::kLive), 1u);
  EXPECT_TRUE(pool_->keeper().is_published(hash_of(1), 1));
}

TEST_F(TakeoverTest, EntriesWithNumbersOutOfRangeAreDroppedAndNothingIsReadThere) {
  store(1, 8);
  const auto spoil = [&](std::uint64_t name, auto&& change) {
    const std::uint64_t offset = entry_offset(name);
    auto entry = pool_->line_at<Entry>(offset);
    change(entry);
    pool_->put_line(offset, entry);
  };
  store(20, 1);
  store(21, 1);
  store(22, 1);
  store(23, 1);
  store(24, 1);
  spoil(20, [](Entry& e) { e.block = 0xfffffff0u; });
  spoil(21, [](Entry& e) { e.parent = 0xfffffff0u; });
  spoil(22, [](Entry& e) { e.length = 257; });
  spoil(23, [](Entry& e) { e.namespace_id = 2; });
  spoil(24, [](Entry& e) { e.epoch = 9; });
  take_over();
  EXPECT_EQ(count(KeeperCounter::kLive), 8u);
  EXPECT_EQ(found(1, 8), 8u);
}

TEST_F(TakeoverTest, AKeeperThatDiedInItsOwnTakeoverLosesNothing) {
  store(1, 6);
  pool_->kill_keeper();
  // Keeper 2 said that it takes over and had written three entries again.
  KeeperLine line{};
  line.epoch = 2;
  line.min_epoch = 1;
  pool_->put_line(layout().keeper_line(1), line);
  for (const std::uint64_t name : {1, 3, 6}) {
    const std::uint64_t offset = entry_offset(name);
    auto entry = pool_->line_at<Entry>(offset);
    entry.epoch = 2;
    pool_->put_line(offset, entry);
  }
  pool_->start_keeper();
  EXPECT_EQ(pool_->keeper().epoch(), 3u);
  EXPECT_TRUE(pool_->keeper().is_valid());
  EXPECT_EQ(count(KeeperCounter::kLive), 6u);
  EXPECT_EQ(found(1, 6), 6u);
}

TEST_F(TakeoverTest, ManyKeepersThatDieInTheirTakeoverNeverReuseTheLedgerThatCounts) {
  RawClient holder(*pool_, 0);
  holder.grant(7);
  pool_->kill_keeper();
  for (std::uint32_t epoch = 2; epoch < 12; ++epoch) {
    const std::uint32_t keeper = 1 + (epoch - 2) % 3;  // never area 0, which has the ledger
    KeeperLine line{};
    line.epoch = epoch;
    line.min_epoch = 1;
    pool_->put_line(layout().keeper_line(keeper), line);
  }
  pool_->start_keeper();
  EXPECT_EQ(pool_->keeper().epoch(), 12u);
  EXPECT_EQ(count(KeeperCounter::kQuarantined), 7u);
}

TEST_F(TakeoverTest, NamespacesKeepTheirNumbers) {
  const auto a = pool_->attach(0, in_namespace("a")), b = pool_->attach(1, in_namespace("b"));
  pool_->put(*a, 1, 2);
  pool_->put(*b, 1, 3);
  const std::uint32_t id_a = a->namespace_id(), id_b = b->namespace_id();
  ASSERT_NE(id_a, id_b);
  for (int i = 0; i < 5; ++i) take_over();
  EXPECT_EQ(pool_->attach(2, in_namespace("b"))->namespace_id(), id_b);
  EXPECT_EQ(pool_->attach(2, in_namespace("a"))->namespace_id(), id_a);
  EXPECT_EQ(pool_->attach(2, in_namespace("c"))->namespace_id(), 3u);
  const auto reader = pool_->attach(2, in_namespace("a"));
  EXPECT_EQ(pool_->read(*reader, 1, 3), 2u);
}

TEST_F(TakeoverTest, TheBlocksOfANamespaceWhoseLineIsDamagedAreNobodysAndItsNumberIsNotGivenAway) {
  const auto a = pool_->attach(0, in_namespace("a")), b = pool_->attach(1, in_namespace("b"));
  pool_->put(*a, 1, 2);
  pool_->put(*b, 1, 3);
  pool_->damage(layout().namespace_line(0, 0));
  take_over();
  EXPECT_EQ(count(KeeperCounter::kLive), 3u);
  auto c = pool_->attach(2, in_namespace("c"));
  EXPECT_EQ(c->namespace_id(), 3u);
  EXPECT_EQ(pool_->read(*c, 1, 3), 0u);
  c.reset();
  RawClient raw(*pool_, 2);
  EXPECT_EQ(raw.ask(RawClient::head_of(Op::kNamespace, 0, NamespacePayload{0, 0, 0})).code(),
            Code::kInvalidArgument);
}

TEST_F(TakeoverTest, AnOldKeepersRequestsAreNotExecutedByTheNext) {  // W5
  RawClient client(*pool_, 0);
  const std::uint32_t space = client.open_namespace();
  take_over();
  client.attach();
  for (const Op op : {Op::kNamespace, Op::kGrant, Op::kGiveBack, Op::kTouch, Op::kCommit,
                      Op::kEvict, Op::kDetach, Op::kStop, Op::kPing}) {
    rpc::RequestHead head = RawClient::head_of(op, 1, UsesPayload{space, {}});
    head.epoch = 1;
    const RawClient::Answer answer = client.ask(head);
    ASSERT_TRUE(answer.came) << static_cast<int>(op);
    EXPECT_EQ(answer.code(), Code::kStale) << static_cast<int>(op);
  }
  EXPECT_FALSE(pool_->keeper().stop_requested());
}

TEST_F(TakeoverTest, ALostEpochWithoutASuccessorIsNotTakenForNone) {
  pool_->kill_keeper();
  ViewLine view{};
  view.epoch = 0xffffffffu;
  pool_->put_line(layout().view_line(1, 0), view);
  const auto keeper = Keeper::start(pool_->access(), {}, pool_->clock());
  ASSERT_FALSE(keeper);
  EXPECT_EQ(keeper.error().code, Code::kRefused);
}

TEST_F(TakeoverTest, EpochsThatAreUsedUpAreSaid) {
  pool_->kill_keeper();
  KeeperLine line{};
  line.epoch = line.min_epoch = 0xffffffffu;
  pool_->put_line(layout().keeper_line(0), line);
  const auto keeper = Keeper::start(pool_->access(), {}, pool_->clock());
  ASSERT_FALSE(keeper);
  EXPECT_EQ(keeper.error().code, Code::kRefused);
}

TEST(Keeper, OptionsThatMakeNoSenseAreRefused) {
  TestPool pool;
  KeeperOptions options;
  options.max_grants = 0;
  EXPECT_FALSE(Keeper::start(pool.access(), options, pool.clock()));
  options = {};
  options.policy = "first come";
  const auto keeper = Keeper::start(pool.access(), options, pool.clock());
  ASSERT_FALSE(keeper);
  EXPECT_NE(std::string(keeper.error().message).find("first come"), std::string::npos);
}

TEST_F(TakeoverTest, ANamespaceThatAnEarlierKeeperLeftInTheAreaIsNotTakenOver) {
  pool_->attach(0);
  NamespaceLine leftover{};
  leftover.digest_low = 9;
  leftover.id = 6;
  leftover.epoch = 1;
  pool_->put_line(layout().namespace_line(1, 5), leftover);  // in the area of the next keeper
  take_over();
  take_over();
  EXPECT_EQ(count(KeeperCounter::kNamespaces), 1u);
}

// The machine may have ended before all payloads had reached the devices.
class RestartedMachineTest : public TakeoverTest {
 protected:
  static KeeperOptions of_boot(std::uint64_t boot) {
    KeeperOptions options;
    options.boot_id_low = boot;
    return options;
  }
  void store(std::uint64_t first, std::size_t n, bool with_checksums) {
    ClientOptions options;
    options.write_checksums = with_checksums;
    const auto client = pool_->attach(0, options);
    for (const Verdict v : pool_->put(*client, first, n)) ASSERT_EQ(v, Verdict::kCommitted);
  }
  void lose_payload(std::uint64_t name) {
    pool_->access().for_each_extent(
        pool_->entry_of(hash_of(name)).block, 64,
        [](std::byte* at, std::uint64_t bytes) { std::memset(at, 0, bytes); });
  }
  void fill(const KeeperOptions& options) {
    pool_->kill_keeper();
    pool_->start_keeper(options);
    store(1, 4, true);
    store(11, 3, false);
    lose_payload(3);
  }
  bool has(std::uint64_t name) { return pool_->keeper().is_published(hash_of(name), 1); }
};

TEST_F(RestartedMachineTest, BlocksAreProvedByTheirChecksumsOrDropped) {
  fill(of_boot(1));
  pool_->kill_keeper();
  pool_->start_keeper(of_boot(2));
  EXPECT_TRUE(pool_->keeper().is_valid());
  EXPECT_TRUE(has(1) && has(2));
  EXPECT_FALSE(has(3) || has(4));
  EXPECT_FALSE(has(11) || has(12) || has(13));
  // What one keeper has proved, the next one of this boot does not prove again.
  store(21, 2, false);
  pool_->kill_keeper();
  pool_->start_keeper(of_boot(2));
  EXPECT_TRUE(has(1) && has(21));
}

TEST_F(RestartedMachineTest, AnotherKeeperOfTheSameBootTrustsThem) {
  fill(of_boot(1));
  pool_->kill_keeper();
  pool_->start_keeper(of_boot(1));
  EXPECT_EQ(count(KeeperCounter::kLive), 7u);
}

TEST_F(RestartedMachineTest, AfterAKeeperThatWroteAllBackTheyAreTrusted) {
  int flushes = 0;
  KeeperOptions options = of_boot(1);
  options.flush = [&flushes] {
    ++flushes;
    return Status();
  };
  fill(options);
  pool_->stop_keeper();
  EXPECT_EQ(flushes, 2);
  pool_->start_keeper(of_boot(2));
  EXPECT_EQ(count(KeeperCounter::kLive), 7u);
}

// Pages reach a file in any order: blocks that were stored since, and nothing that says so.
TEST_F(RestartedMachineTest, BlocksThatWereOverwrittenSinceTheLastFlushAreNotTrusted) {
  const Access& access = pool_->access();
  std::byte* const memory = access.view.bases[0];
  std::vector<std::byte> file;
  bool is_stopping = true;
  KeeperOptions options = of_boot(1);
  options.flush = [&] {
    if (is_stopping) file.assign(memory, memory + access.view.bytes_each);
    return Status();
  };
  options.flush_page = [&](std::uint64_t offset) {
    std::memcpy(file.data() + offset, memory + offset, kPageBytes);
    return Status();
  };
  fill(options);
  pool_->stop_keeper();
  is_stopping = false;
  pool_->start_keeper(options);
  ASSERT_TRUE(has(11) && has(12) && has(13));
  {
    const auto client = pool_->attach(0);
    ASSERT_TRUE(client->requests().evict_everything());
    for (std::uint64_t name = 1000; name < 1200; name += 10) pool_->put(*client, name, 10);
  }
  pool_->kill_keeper();
  const std::uint64_t data = access.layout.data_offset;
  std::memcpy(file.data() + data, memory + data, file.size() - data);
  std::memcpy(memory, file.data(), file.size());
  pool_->start_keeper(of_boot(2));
  EXPECT_FALSE(has(11) || has(12) || has(13));
  pool_->keeper().tend();
  EXPECT_EQ(count(KeeperCounter::kQuarantined), 0u);
  store(1, 4, true);
  EXPECT_TRUE(pool_->keeper().is_valid());
}

TEST_F(RestartedMachineTest, AfterAKeeperThatCouldNotWriteThemBackTheyAreProved) {
  KeeperOptions options = of_boot(1);
  options.flush = [] { return Status(Error::make(Code::kIo, "the disk is full of holes")); };
  fill(options);
  pool_->stop_keeper();
  pool_->start_keeper(of_boot(2));
  EXPECT_EQ(count(KeeperCounter::kLive), 2u);
}

// The last word is that of the keeper that finished its takeover: one that died in it has proved nothing.
TEST_F(RestartedMachineTest, AKeeperThatDiedInItsTakeoverHasProvedNothing) {
  fill(of_boot(1));
  pool_->kill_keeper();
  {
    KeeperOptions options = of_boot(2);
    auto dying = Keeper::prepare(pool_->access(), options, pool_->clock());
    ASSERT_TRUE(dying);
    ASSERT_TRUE((*dying)->announce(0));
  }
  pool_->start_keeper(of_boot(2));
  EXPECT_EQ(count(KeeperCounter::kLive), 2u);
}

// There another boot may be another host's, which took over while all machines ran.
TEST_F(RestartedMachineTest, APoolOfSeveralHostsKeepsBlocksWithoutAChecksum) {
  Geometry g = small_geometry();
  g.clients = 4;
  g.hosts = 2;
  make(g);
  fill(of_boot(1));
  pool_->kill_keeper();
  pool_->start_keeper(of_boot(2));
  EXPECT_EQ(count(KeeperCounter::kLive), 5u);
  EXPECT_FALSE(has(3));
  EXPECT_TRUE(has(13));
}

}  // namespace
}  // namespace cachalot::pool
