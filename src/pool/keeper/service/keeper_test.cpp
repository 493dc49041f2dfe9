// The keeper's promises to clients: W1 to W4, verdicts, eviction, namespaces.

#include "pool/keeper/service/keeper.h"

#include <gtest/gtest.h>

#include <set>

#include "testing/pool/test_pool.h"

namespace cachalot::pool {
namespace {

class KeeperTest : public testing::Test {
 protected:
  void make(std::uint32_t capacity = 64, std::uint32_t slack = 64,
            std::uint32_t directory_slots = 0) {
    Geometry g = small_geometry(capacity, slack);
    if (directory_slots != 0) g.directory_slots = directory_slots;
    pool_ = std::make_unique<TestPool>(g);
    pool_->start_keeper();
    raw_ = std::make_unique<RawClient>(*pool_, 0);
    space_ = raw_->open_namespace();
  }
  Verdict commit(std::uint64_t name, const BlockUse& use, const BlockHash* parent = nullptr) {
    return raw_->commit_one(space_, parent, RawClient::item(name, use));
  }
  bool is_published(std::uint64_t name) {
    return pool_->keeper().is_published(hash_of(name), space_);
  }
  std::uint32_t granted() {
    return static_cast<std::uint32_t>(pool_->keeper().counters()[KeeperCounter::kGranted]);
  }
  void TearDown() override { EXPECT_TRUE(pool_->keeper().is_valid()); }

  std::unique_ptr<TestPool> pool_;
  std::unique_ptr<RawClient> raw_;
  std::uint32_t space_ = 0;
};

TEST_F(KeeperTest, ACommitThatIsSentAgainIsAnsweredAgain) {  // W2
  make();
  const BlockUse use = raw_->grant(1)[0];
  EXPECT_EQ(commit(1, use), Verdict::kCommitted);
  const Entry entry = pool_->entry_of(hash_of(1));
  EXPECT_EQ(commit(1, use), Verdict::kCommitted);
  EXPECT_EQ(commit(2, use), Verdict::kNotHeld);
  const Entry again = pool_->entry_of(hash_of(1));
  EXPECT_TRUE(same_entry(entry, again));
  EXPECT_EQ(pool_->keeper().counters()[KeeperCounter::kCommits], 1u);
  EXPECT_EQ(granted(), 0u);
}

TEST_F(KeeperTest, AChainOfWhichPartIsPublishedAlreadyGoesOnFromThere) {
  make();
  const std::vector<BlockUse> uses = raw_->grant(3);
  const CommitItem items[] = {RawClient::item(1, uses[0]), RawClient::item(2, uses[1]),
                              RawClient::item(3, uses[2])};
  EXPECT_EQ(raw_->commit(space_, nullptr, {items, 2}),
            (std::vector<Verdict>{Verdict::kCommitted, Verdict::kCommitted}));
  EXPECT_EQ(raw_->commit(space_, nullptr, items), (std::vector<Verdict>(3, Verdict::kCommitted)));
  EXPECT_EQ(pool_->entry_of(hash_of(3)).parent, uses[1].block);
}

TEST_F(KeeperTest, ABlockThatGoesBackToItsGrantHasANewGenerationInTheLedger) {  // W3
  make();
  const std::vector<BlockUse> uses = raw_->grant(2);
  EXPECT_EQ(commit(1, uses[0]), Verdict::kCommitted);
  EXPECT_EQ(commit(1, uses[1]), Verdict::kDuplicate);
  const LedgerRecord record = Ledger::read(pool_->access(), 0, uses[1].block);
  EXPECT_EQ(record.generation, uses[1].generation + 1);
  EXPECT_EQ(record.state, LedgerState::kGranted);
  EXPECT_EQ(commit(2, uses[1]), Verdict::kNotHeld);
  const BlockUse next{uses[1].block, uses[1].generation + 1};
  EXPECT_EQ(commit(2, next), Verdict::kCommitted);
}

TEST_F(KeeperTest, EachRefusalGivesTheBlockBackForItsNextUse) {
  make();
  BlockUse use = raw_->grant(1)[0];
  const auto next = [&] { return BlockUse{use.block, use.generation++}; };
  const BlockHash absent = hash_of(77);
  EXPECT_EQ(commit(1, next(), &absent), Verdict::kNoParent);
  EXPECT_EQ(raw_->commit_one(space_, nullptr, RawClient::item(1, next(), 0)), Verdict::kBadItem);
  EXPECT_EQ(raw_->commit_one(space_, nullptr, RawClient::item(1, next(), 257)), Verdict::kBadItem);
  EXPECT_EQ(raw_->commit_one(space_, nullptr, RawClient::item(1, next(), 0xffffffffu)),
            Verdict::kBadItem);
  CommitItem odd = RawClient::item(1, next());
  odd.flags = 2;
  EXPECT_EQ(raw_->commit_one(space_, nullptr, odd), Verdict::kBadItem);
  EXPECT_EQ(granted(), 1u);
  EXPECT_EQ(commit(1, use), Verdict::kCommitted);
}

TEST_F(KeeperTest, TheTombstoneIsInThePoolBeforeTheBlockIsGrantedAgain) {  // W4
  make(4, 4);
  std::vector<BlockUse> uses = raw_->grant(4);
  for (std::uint64_t i = 0; i < 4; ++i) EXPECT_EQ(commit(i, uses[i]), Verdict::kCommitted);
  raw_->grant(4);  // what was never used
  const std::vector<BlockUse> again = raw_->grant(2);
  ASSERT_EQ(again.size(), 2u);
  EXPECT_EQ(again[0].block, uses[0].block);
  EXPECT_GT(again[0].generation, uses[0].generation);
  EXPECT_EQ(pool_->slot_of(hash_of(0)), DirectoryWriter::kNoSlot);
  EXPECT_EQ(pool_->slot_of(hash_of(1)), DirectoryWriter::kNoSlot);
  EXPECT_NE(pool_->slot_of(hash_of(2)), DirectoryWriter::kNoSlot);
}

TEST_F(KeeperTest, AGrantIsInTheLedgerBeforeItIsAnswered) {
  make();
  for (const BlockUse& use : raw_->grant(30)) {
    const LedgerRecord record = Ledger::read(pool_->access(), 0, use.block);
    EXPECT_EQ(record.state, LedgerState::kGranted);
    EXPECT_EQ(record.generation, use.generation);
    EXPECT_EQ(record.holder, 0u);
    EXPECT_EQ(record.incarnation, raw_->incarnation());
  }
}

TEST_F(KeeperTest, OneClientHoldsAtMostSoManyBlocks) {
  Geometry g = small_geometry(64, 500);
  pool_ = std::make_unique<TestPool>(g);
  KeeperOptions options;
  options.max_grants = 100;
  pool_->start_keeper(options);
  raw_ = std::make_unique<RawClient>(*pool_, 0);
  EXPECT_EQ(raw_->grant(90).size(), 90u);
  EXPECT_EQ(raw_->grant(90).size(), 10u);
  EXPECT_EQ(raw_->ask(RawClient::head_of(Op::kGrant, 1)).code(), Code::kBusy);
  EXPECT_EQ(pool_->keeper().counters()[KeeperCounter::kOverLimitGrants], 1u);
  RawClient other(*pool_, 1);
  EXPECT_EQ(other.grant(0xffff).size(), 100u);
}

TEST_F(KeeperTest, TakesOtherLimitsWhileItServes) {
  Geometry g = small_geometry(64, 500);
  pool_ = std::make_unique<TestPool>(g);
  KeeperOptions options;
  options.max_grants = 100;
  pool_->start_keeper(options);
  raw_ = std::make_unique<RawClient>(*pool_, 0);
  pool_->keeper().set_limits(10, 0);
  EXPECT_EQ(raw_->grant(90).size(), 10u);
  pool_->keeper().set_limits(30, 0);
  EXPECT_EQ(raw_->grant(90).size(), 20u);
  pool_->keeper().set_limits(5, 0);
  EXPECT_EQ(raw_->ask(RawClient::head_of(Op::kGrant, 1)).code(), Code::kBusy);
}

TEST_F(KeeperTest, GrantsEndWhereNothingIsFreeAndNothingMayGo) {
  make(4, 4);
  EXPECT_EQ(raw_->grant(100).size(), 8u);
  EXPECT_EQ(raw_->ask(RawClient::head_of(Op::kGrant, 1)).code(), Code::kNoSpace);
  EXPECT_EQ(pool_->keeper().counters()[KeeperCounter::kNoSpaceGrants], 1u);
}

TEST_F(KeeperTest, EvictionTakesTheLeafThatWasUsedLongestAgo) {
  make(3, 8);
  const BlockHash root = hash_of(1);
  const std::vector<BlockUse> uses = raw_->grant(5);
  EXPECT_EQ(commit(1, uses[0]), Verdict::kCommitted);
  EXPECT_EQ(commit(2, uses[1], &root), Verdict::kCommitted);
  EXPECT_EQ(commit(3, uses[2]), Verdict::kCommitted);
  UsesPayload touch{space_, {uses[1]}};
  EXPECT_TRUE(raw_->ask(RawClient::head_of(Op::kTouch, 1, touch)).is_yes());
  EXPECT_EQ(commit(4, uses[3]), Verdict::kCommitted);
  EXPECT_FALSE(is_published(3));
  EXPECT_TRUE(is_published(1) && is_published(2) && is_published(4));
  EXPECT_EQ(commit(5, uses[4]), Verdict::kCommitted);
  EXPECT_FALSE(is_published(2));  // the leaf of the older chain; its parent stays
  EXPECT_TRUE(is_published(1));
}

TEST_F(KeeperTest, ATouchOfAnythingButALiveUseIsStaleAndChangesNothing) {
  make(2, 8);
  const std::vector<BlockUse> uses = raw_->grant(3);
  commit(1, uses[0]);
  commit(2, uses[1]);
  const auto touch = [&](BlockUse use, std::uint32_t space) {
    return raw_->ask(RawClient::head_of(Op::kTouch, 1, UsesPayload{space, {use}})).code();
  };
  EXPECT_EQ(touch({uses[0].block, uses[0].generation + 1}, space_), Code::kStale);
  EXPECT_EQ(touch({uses[0].block, 0}, space_), Code::kStale);
  EXPECT_EQ(touch(uses[0], space_ + 1), Code::kStale);
  EXPECT_EQ(touch(uses[2], space_), Code::kStale);
  EXPECT_EQ(touch({0xfffffffeu, 1}, space_), Code::kStale);
  commit(3, uses[2]);
  EXPECT_FALSE(is_published(1));
  EXPECT_EQ(pool_->keeper().counters()[KeeperCounter::kStaleTouches], 5u);
}

TEST_F(KeeperTest, AFullBucketGivesUpALeafOfItsOwn) {
  make(100, 30, 64);  // one bucket of 64 slots for 100 blocks
  std::set<std::uint64_t> in;
  for (std::uint64_t name = 0; name < 70; ++name) {
    EXPECT_EQ(commit(name, raw_->grant(1)[0]), Verdict::kCommitted) << name;
  }
  EXPECT_EQ(pool_->keeper().counters()[KeeperCounter::kBucketEvictions], 6u);
  EXPECT_EQ(pool_->keeper().counters()[KeeperCounter::kLive], 64u);
  EXPECT_TRUE(is_published(69));
}

TEST_F(KeeperTest, AFullBucketWithoutALeafRefuses) {
  make(100, 30, 64);
  for (std::uint64_t name = 0; name < 64; ++name) {
    const BlockHash parent = hash_of(name - 1);
    ASSERT_EQ(commit(name, raw_->grant(1)[0], name == 0 ? nullptr : &parent), Verdict::kCommitted);
  }
  const BlockHash tail = hash_of(63);
  EXPECT_EQ(commit(64, raw_->grant(1)[0], &tail), Verdict::kNoRoom);
  EXPECT_EQ(pool_->keeper().counters()[KeeperCounter::kLive], 64u);
}

TEST_F(KeeperTest, AFullBucketSparesTheEndOfAnOpenChainUntilSomebodyIsRefused) {
  make(100, 30, 64);
  for (std::uint64_t name = 0; name < 64; ++name) {
    const BlockHash parent = hash_of(name - 1);
    const CommitItem item = RawClient::item(name, raw_->grant(1)[0]);
    const std::vector<Verdict> verdicts =
        raw_->commit(space_, name == 0 ? nullptr : &parent, {&item, 1}, kCommitGoesOn);
    ASSERT_EQ(verdicts, std::vector<Verdict>(1, Verdict::kCommitted));
  }
  RawClient other(*pool_, 1);
  EXPECT_EQ(other.commit_one(space_, nullptr, RawClient::item(64, other.grant(1)[0])),
            Verdict::kNoRoom);
  EXPECT_TRUE(is_published(63));
  EXPECT_EQ(other.commit_one(space_, nullptr, RawClient::item(64, other.grant(1)[0])),
            Verdict::kCommitted);
  EXPECT_FALSE(is_published(63));
}

TEST_F(KeeperTest, GivenBackBlocksAreFreeAgainOnceAndOnlyByTheirHolder) {
  make(4, 4);
  const std::vector<BlockUse> uses = raw_->grant(8);
  RawClient other(*pool_, 1);
  const UsesPayload two{space_, {uses[0], uses[1]}};
  EXPECT_EQ(other.ask(RawClient::head_of(Op::kGiveBack, 2, two)).code(), Code::kRefused);
  EXPECT_EQ(granted(), 8u);
  EXPECT_TRUE(raw_->ask(RawClient::head_of(Op::kGiveBack, 2, two)).is_yes());
  EXPECT_EQ(raw_->ask(RawClient::head_of(Op::kGiveBack, 2, two)).code(), Code::kRefused);
  EXPECT_EQ(granted(), 6u);
  const std::vector<BlockUse> again = other.grant(8);
  ASSERT_EQ(again.size(), 2u);
  EXPECT_EQ(again[0].generation, uses[0].generation + 1);
}

TEST_F(KeeperTest, WhoDetachesLeavesNothingBehindAndWhoIsReplacedLeavesAQuarantine) {
  make(8, 8);
  raw_->grant(5);
  EXPECT_TRUE(raw_->ask(RawClient::head_of(Op::kDetach)).is_yes());
  EXPECT_EQ(granted(), 0u);
  raw_->attach();
  const std::vector<BlockUse> uses = raw_->grant(5);
  // Another process, in the same slot, of which nothing proves that it is the first one's successor.
  EXPECT_FALSE(pool_->try_attach(0));
  EXPECT_EQ(granted(), 0u);
  EXPECT_EQ(pool_->keeper().counters()[KeeperCounter::kQuarantined], 5u);
  for (const BlockUse& use : uses) {
    EXPECT_EQ(Ledger::read(pool_->access(), 0, use.block).state, LedgerState::kQuarantined);
  }
  EXPECT_EQ(pool_->try_attach(0).error().code, Code::kBusy);
  raw_ = std::make_unique<RawClient>(*pool_, 1);
  space_ = raw_->open_namespace();
  EXPECT_EQ(raw_->grant(100).size(), 11u);
  EXPECT_EQ(commit(1, uses[0]), Verdict::kNotHeld);
}

TEST_F(KeeperTest, AnIncarnationIsNotServedTwice) {
  make();
  EXPECT_TRUE(raw_->ask(RawClient::head_of(Op::kDetach)).is_yes());
  const std::uint64_t served = pool_->keeper().counters()[KeeperCounter::kRequests];
  // Its line says attached still, and its old requests still lie in the ring.
  pool_->keeper().tend();
  pool_->keeper().poll();
  EXPECT_EQ(pool_->keeper().counters()[KeeperCounter::kRequests], served);
  EXPECT_EQ(pool_->keeper().counters()[KeeperCounter::kClients], 0u);
}

TEST_F(KeeperTest, APoolTellsTwoHundredAndFiftySixFingerprintsApart) {
  make();
  std::set<std::uint32_t> ids{space_};
  for (std::uint64_t digest = 100; digest < 100 + kMaxNamespaces - 1; ++digest)
    ids.insert(raw_->open_namespace(digest));
  EXPECT_EQ(ids.size(), kMaxNamespaces);
  EXPECT_EQ(raw_->ask(RawClient::head_of(Op::kNamespace, 0, NamespacePayload{99'999, 1, 0})).code(),
            Code::kNoSpace);
  EXPECT_EQ(raw_->open_namespace(), space_);
  Result<std::unique_ptr<Client>> late = pool_->try_attach(1, in_namespace("one too many"));
  ASSERT_FALSE(late);
  EXPECT_EQ(late.error().code, Code::kNoSpace);
  EXPECT_NE(std::string(late.error().message).find("one too many"), std::string::npos);
}

TEST_F(KeeperTest, AParentOfAnotherNamespaceIsNoParent) {
  make();
  const std::uint32_t other = raw_->open_namespace(6);
  const BlockHash parent = hash_of(1);
  const std::vector<BlockUse> uses = raw_->grant(2);
  EXPECT_EQ(commit(1, uses[0]), Verdict::kCommitted);
  EXPECT_EQ(raw_->commit_one(other, &parent, RawClient::item(2, uses[1])), Verdict::kNoParent);
}

TEST_F(KeeperTest, ABlockWhoseGenerationsAreUsedUpIsTakenOutOfUse) {
  make(4, 4);
  raw_->grant(8);
  pool_->kill_keeper();
  // The ledger line as it would be after 2^32 - 2 uses of each of its blocks.
  const std::uint64_t offset = pool_->access().layout.ledger_line(0, 0);
  auto line = pool_->line_at<LedgerLine>(offset);
  for (LedgerRecord& record : line.records)
    record = {kLastGeneration - 1, 0, 0, LedgerState::kFree, 0};
  line.records[4].generation = kLastGeneration;
  pool_->put_line(offset, line);
  pool_->start_keeper();
  EXPECT_EQ(pool_->keeper().counters()[KeeperCounter::kBad], 1u);
  raw_ = std::make_unique<RawClient>(*pool_, 1);  // slot 0 is held
  const std::vector<BlockUse> uses = raw_->grant(8);
  ASSERT_EQ(uses.size(), 4u);
  EXPECT_EQ(uses[0].generation, kLastGeneration);
  EXPECT_EQ(commit(1, uses[0]), Verdict::kCommitted);
  EXPECT_EQ(commit(1, uses[1]),
            Verdict::kDuplicate);  // there is no generation to give it back with
  EXPECT_EQ(pool_->keeper().counters()[KeeperCounter::kBad], 2u);
  EXPECT_EQ(commit(2, {uses[1].block, 0}), Verdict::kNotHeld);
  EXPECT_TRUE(
      raw_->ask(RawClient::head_of(Op::kGiveBack, 1, UsesPayload{space_, {uses[2]}})).is_yes());
  EXPECT_EQ(pool_->keeper().counters()[KeeperCounter::kBad], 3u);
  const BlockHash hash = hash_of(1);
  EXPECT_TRUE(
      raw_->ask(RawClient::head_of(Op::kEvict, 0,
                                   EvictPayload{space_, EvictScope::kBlock, hash.low, hash.high}))
          .is_yes());
  EXPECT_EQ(pool_->keeper().counters()[KeeperCounter::kBad], 4u);
}

TEST_F(KeeperTest, ItNeedsAHundredBytesOfItsOwnABlock) {
  make(640, 0);
  EXPECT_EQ(pool_->keeper().memory_bytes(), 640u * 100);
}

TEST_F(KeeperTest, AChainLongerThanThePoolDoesNotEvictItsOwnParents) {
  make(3, 8);
  const std::vector<BlockUse> uses = raw_->grant(5);
  std::vector<CommitItem> items;
  for (std::uint64_t i = 0; i < 5; ++i) items.push_back(RawClient::item(i, uses[i]));
  EXPECT_EQ(raw_->commit(space_, nullptr, items),
            (std::vector<Verdict>{Verdict::kCommitted, Verdict::kCommitted, Verdict::kCommitted,
                                  Verdict::kNoRoom, Verdict::kNoParent}));
}

}  // namespace
}  // namespace cachalot::pool
