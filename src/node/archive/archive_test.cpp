#include "node/archive/archive.h"

#include "node/archive/archive_test_pool.h"

namespace cachalot::node {
namespace {

TEST_P(ArchiveTest, WhatWasEvictedComesBack) {
  start();
  const std::vector<BlockHash> first = chain(1, 40), second = chain(2, 60);
  EXPECT_EQ(store(first), 40u);
  drain();
  EXPECT_EQ(store(second), 60u);
  drain();
  EXPECT_LT(*client_->lookup(first), 40u);
  const Prefetched found = prefetch(first);
  EXPECT_EQ(found.in_pool, 40u);
  EXPECT_EQ(found.in_storage, 0u);
  EXPECT_EQ(load(first), 40u);
}

TEST_P(ArchiveTest, ABlockComesWithWhatItStandsOn) {
  start();
  const std::vector<BlockHash> hashes = chain(1, 40);
  EXPECT_EQ(store(hashes), 40u);
  drain();
  lose_pool();
  start();
  const Prefetched found = prefetch(std::span(hashes).last(1));
  EXPECT_EQ(found.in_pool, 1u);
  EXPECT_EQ(load(hashes), 40u);
}

TEST_P(ArchiveTest, ANewPoolIsWarmFromStorage) {
  start();
  const std::vector<BlockHash> hashes = chain(1, 50);
  store(hashes);
  drain();
  lose_pool();
  start();
  EXPECT_EQ(*client_->lookup(hashes), 0u);
  EXPECT_EQ(prefetch(hashes).in_pool, 50u);
  EXPECT_EQ(load(hashes), 50u);
}

TEST_P(ArchiveTest, ChainsLongerThanARequestComeBackWhole) {
  lose_pool(400);
  start();
  const std::vector<BlockHash> hashes = chain(1, 300);
  EXPECT_EQ(store(hashes), 300u);
  drain();
  lose_pool(400);
  start();
  EXPECT_EQ(prefetch(hashes).in_pool, 300u);
  EXPECT_EQ(load(hashes), 300u);
}

TEST_P(ArchiveTest, APrefetchWithoutWaitSaysWhatIsStored) {
  start();
  const std::vector<BlockHash> hashes = chain(1, 50);
  store(std::span(hashes).first(40));
  drain();
  lose_pool();
  start();
  const Prefetched found = prefetch(hashes, 0);
  EXPECT_EQ(found.in_pool + found.in_storage, 40u);
  EXPECT_EQ(prefetch(hashes).in_pool, 40u);
}

TEST_P(ArchiveTest, WithoutStorageAPrefetchIsALookup) {
  has_storage_ = false;
  start();
  const std::vector<BlockHash> hashes = chain(1, 10);
  store(hashes);
  const std::vector<BlockHash> longer = chain(1, 12);
  const Prefetched found = prefetch(longer);
  EXPECT_EQ(found.in_pool, 10u);
  EXPECT_EQ(found.in_storage, 0u);
  EXPECT_EQ(*client_->storage_backlog(), 0u);
}

TEST_P(ArchiveTest, SelectiveStoresWhatWasUsedTwice) {
  start({.policy = WritePolicy::kSelective, .selective_uses = 2});
  store(chain(4, 1));
  drain();  // a directory that the archiver reads at its start has no uses
  const std::vector<BlockHash> used = chain(1, 20), unused = chain(2, 20);
  store(used), store(unused);
  EXPECT_EQ(load(used), 20u);
  EXPECT_EQ(load(std::span(used).first(10)), 10u);
  store(chain(3, 1));  // hits are reported before a commit
  drain();
  EXPECT_EQ(disk_.count(), 10u);
}

TEST_P(ArchiveTest, BackStoresTheColdestBlocksOfANearlyFullPool) {
  start({.policy = WritePolicy::kBack, .back_reserve_permille = 250});
  const std::vector<BlockHash> hashes = chain(1, 20);
  store(hashes);
  drain();
  EXPECT_EQ(disk_.count(), 0u);
  for (std::uint64_t name = 2; name < 12; ++name) {
    store(chain(name, 8));
    drain();
    // Writing in advance needs a moment between stores, which engines give.
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    drain();
  }
  EXPECT_LT(*client_->lookup(hashes), 20u);
  EXPECT_EQ(archive_->counts().lost_blocks, 0u);
  EXPECT_EQ(prefetch(hashes).in_pool, 20u);
  EXPECT_EQ(load(hashes), 20u);
}

TEST_P(ArchiveTest, DamagedObjectsAreMisses) {
  start();
  const std::vector<BlockHash> hashes = chain(1, 20);
  store(hashes);
  drain();
  lose_pool();
  for (auto& [key, object] : disk_.objects) {
    if (key.block == hashes[7]) object.body[100] ^= std::byte{1};
  }
  start();
  EXPECT_EQ(prefetch(hashes).in_pool, 7u);
  EXPECT_EQ(load(hashes), 7u);
  EXPECT_EQ(archive_->store().counts().damaged_objects, 1u);
  store(hashes);
  drain();
  lose_pool();
  start();
  EXPECT_EQ(prefetch(hashes).in_pool, 20u);
  EXPECT_EQ(load(hashes), 20u);
}

// In a large pool, blocks of four commits are asked for at once.
TEST_P(ArchiveTest, DamageInAQuestionOfSeveralCommitsIsAMissThereAndNoRoomIsLost) {
  lose_pool(capacity_ = 1100);
  start();
  std::vector<std::vector<BlockHash>> chains;
  for (std::uint64_t name = 1; name <= 8; ++name) {
    chains.push_back(chain(name, 100));
    EXPECT_EQ(store(chains.back()), 100u);
  }
  drain();
  lose_pool(capacity_);
  for (auto& [key, object] : disk_.objects) {
    for (const std::vector<BlockHash>& hashes : chains)
      if (key.block == hashes[40]) object.body[100] ^= std::byte{1};
  }
  start();
  for (const std::vector<BlockHash>& hashes : chains) {
    EXPECT_EQ(prefetch(hashes).in_pool, 40u);
    EXPECT_EQ(load(hashes), 40u);
  }
  const std::vector<BlockHash> others = chain(9, 700);
  EXPECT_EQ(store(others), 700u);
  EXPECT_EQ(load(others), 700u);
}

// The blocks of a question are three commits. The keeper ends while the first one waits for its answer.
TEST_P(ArchiveTest, AKeeperThatEndsDuringAQuestionOfSeveralCommitsEndsSoon) {
  lose_pool(capacity_ = 1100);
  start();
  const std::vector<BlockHash> hashes = chain(1, 96);
  EXPECT_EQ(store(hashes), 96u);
  drain();
  lose_pool(capacity_);
  std::atomic<bool> has_come{false}, stands{false};
  check_ = [&]() -> Status {
    if (!has_come) return {};
    stands = true;
    std::this_thread::sleep_for(std::chrono::milliseconds(300));
    ends_ = true;
    return {};
  };
  disk_.answer_get = [&](const storage::ObjectKey& key) {
    has_come = has_come || key.block == hashes.back();
    while (has_come && !stands) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    return Status();
  };
  start();
  (void)client_->prefetch(hashes, 20 * kSecond);
  while (!ends_) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  const std::uint64_t begin_ns = base::SteadyClock::read();
  stop();
  EXPECT_LT(base::SteadyClock::read() - begin_ns, 2 * kSecond);
  check_ = {};
  disk_.answer_get = {};
  start();
  EXPECT_EQ(prefetch(hashes).in_pool, 96u);
  EXPECT_EQ(load(hashes), 96u);
}

TEST_P(ArchiveTest, AStorageThatIsDownCostsNothingAndComesBack) {
  start();
  disk_.fail(Error::make(Code::kIo, "the server is down"));
  const std::vector<BlockHash> hashes = chain(1, 30);
  EXPECT_EQ(store(hashes), 30u);
  EXPECT_EQ(load(hashes), 30u);
  drain();
  EXPECT_EQ(disk_.count(), 0u);
  const std::vector<BlockHash> other = chain(2, 10);
  EXPECT_EQ(prefetch(other).in_pool, 0u);
  disk_.fail({});
  EXPECT_TRUE(holds(30));
  lose_pool();
  start();
  EXPECT_EQ(prefetch(hashes).in_pool, 30u);
}

// A server that refuses each eleventh object: those below it are written again, and all is there in the end.
TEST_P(ArchiveTest, BlocksBelowARefusedOneAreWrittenLater) {
  std::size_t objects = 0;
  disk_.answer_put = [&objects](const storage::ObjectKey&) {
    if (++objects % 11 != 0) return Status();
    return Status(Error::make(Code::kBusy, "HTTP 503, SlowDown"));
  };
  start();
  const std::vector<BlockHash> hashes = chain(1, 15);
  EXPECT_EQ(store(hashes), 15u);
  EXPECT_TRUE(holds(15));
  EXPECT_EQ(archive_->store().counts().outages, 0u);
  // Those below it are on the disk already, and count once they were written again.
  const std::uint64_t until_ns = base::SteadyClock::read() + 20 * kSecond;
  while (archive_->store().catalogue().objects() < 15 && base::SteadyClock::read() < until_ns)
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  lose_pool();
  start();
  EXPECT_EQ(prefetch(hashes).in_pool, 15u);
}

TEST_P(ArchiveTest, WhatWasPutDuringAnOutageIsWrittenAfterwardsAndSoIsWhatTheServerLost) {
  disk_.is_shared = true;
  start();
  const std::vector<BlockHash> before = chain(1, 12), during = chain(2, 30), longer = chain(1, 20);
  store(before);
  drain();
  EXPECT_EQ(disk_.count(), 12u);
  disk_.fail(Error::make(Code::kIo, "the server is down"));
  store(during);
  store(longer);
  for (std::uint64_t name = 3; archive_->counts().is_up && name < 13; ++name) {
    store(chain(name, 1));
    drain();
  }
  EXPECT_FALSE(archive_->counts().is_up);
  const std::size_t published = pool_blocks();
  {
    const std::lock_guard lock(disk_.mutex);
    disk_.objects.clear();  // the server had them in memory
    disk_.failure = {};
  }
  EXPECT_TRUE(holds(published));
  // And what was put below them before the loss was noticed.
  EXPECT_GE(archive_->store().counts().missing_objects, 12u);
  EXPECT_LE(archive_->store().counts().missing_objects, 20u);
  EXPECT_EQ(archive_->store().counts().outages, 1u);
  lose_pool();
  start();
  EXPECT_EQ(prefetch(longer).in_pool, 20u);
  EXPECT_EQ(prefetch(during).in_pool, 30u);
  EXPECT_EQ(load(during), 30u);
}

TEST_P(ArchiveTest, ALongOutageIsMadeUpForAlsoWithAShortQueue) {
  lose_pool(1000);
  start({.queued_blocks = 16});
  disk_.fail(Error::make(Code::kIo, "the server is down"));
  for (std::uint64_t name = 1; name <= 9; ++name) EXPECT_EQ(store(chain(name, 100)), 100u);
  drain();
  disk_.fail({});
  EXPECT_TRUE(holds(900));
}

// The archive's thread is in a call of the storage meanwhile. Then it reads the directory, and what the queue still has
// is older: blocks that have other numbers and other parents by now.
TEST_P(ArchiveTest, MoreChangesThanTheQueueHoldsWhileStorageStandsStillDoNotEndTheArchive) {
  constexpr std::size_t kQueuedChanges = 1u << 17;
  start();
  base::Rng rng(1);
  std::uint64_t name = 1;
  {
    const std::lock_guard standstill(disk_.mutex);
    for (std::size_t stored = 0; stored < kQueuedChanges * 3 / 4; ++name) {
      const std::vector<BlockHash> hashes = chain(name, 1 + rng.below(60));
      stored += store(hashes);
      load(std::span(hashes).first(1 + rng.below(hashes.size())));  // the keeper tells of the use
    }
  }
  drain();
  const std::vector<BlockHash> later = chain(name, 20);
  EXPECT_EQ(store(later), 20u);
  drain();
  for (const BlockHash& hash : later) {
    const std::lock_guard lock(disk_.mutex);
    EXPECT_TRUE(std::any_of(disk_.objects.begin(), disk_.objects.end(),
                            [&](const auto& object) { return object.first.block == hash; }));
  }
}

TEST_P(ArchiveTest, AThreadThatHangsInTheStorageTakesItOutOfUse) {
  start({.io_timeout_ns = 5'000'000});
  const auto wait_until_up = [&](bool is_up) {
    const std::uint64_t until_ns = base::SteadyClock::read() + 20 * kSecond;
    while (archive_->counts().is_up != is_up && base::SteadyClock::read() < until_ns)
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    return archive_->counts().is_up == is_up;
  };
  EXPECT_TRUE(wait_until_up(true));
  {
    const std::lock_guard standstill(disk_.mutex);
    store(chain(1, 4));
    EXPECT_TRUE(wait_until_up(false));
    const Result<bool> has_storage = client_->has_storage();
    ASSERT_TRUE(has_storage) << has_storage.error().message;
    EXPECT_FALSE(*has_storage);
  }
  EXPECT_TRUE(wait_until_up(true));
}

TEST_P(ArchiveTest, APrefetchEndsInItsTimeThoughNoKeeperAnswers) {
  start();
  ends_ = true;
  thread_.join();
  thread_ = {};
  pool_->state();
  const std::uint64_t begin_ns = base::SteadyClock::read();
  EXPECT_FALSE(client_->prefetch(chain(1, 4), 0));
  EXPECT_FALSE(client_->prefetch(chain(1, 4), 100'000'000));
  EXPECT_LT(base::SteadyClock::read() - begin_ns, kSecond);  // 0.2 + 0.3 s
  client_.reset();
  archive_.reset();
  keeper_.reset();
}

TEST_P(ArchiveTest, AWalkOverDamagedParentsEnds) {
  Mirror mirror(pool_->access());
  for (std::uint32_t block = 0; block < 4; ++block)
    mirror.publish({{1, block}, {block, 1}, (block + 1) % 4, 1});
  std::size_t steps = 0;
  mirror.walk_up(0, [&](std::uint32_t) { return ++steps != 0; });
  EXPECT_EQ(steps, pool_->access().geometry.blocks);
}

TEST_P(ArchiveTest, SelectiveMakesUpOnlyForWhatWasUsed) {
  start({.policy = WritePolicy::kSelective, .selective_uses = 2});
  disk_.fail(Error::make(Code::kIo, "the server is down"));
  const std::vector<BlockHash> used = chain(1, 20);
  store(used), store(chain(2, 20));
  EXPECT_EQ(load(used), 20u);
  EXPECT_EQ(load(std::span(used).first(10)), 10u);
  store(chain(3, 1));  // hits are reported before a commit
  drain();
  disk_.fail({});
  EXPECT_TRUE(holds(10));
  std::this_thread::sleep_for(std::chrono::milliseconds(50));
  EXPECT_EQ(disk_.count(), 10u);
}

TEST_P(ArchiveTest, FetchedBlocksThatNobodyUsedAreCounted) {
  start();
  const std::vector<BlockHash> wanted = chain(1, 10), unwanted = chain(2, 10);
  store(wanted), store(unwanted);
  drain();
  lose_pool();
  start();
  prefetch(wanted), prefetch(unwanted);
  EXPECT_EQ(load(wanted), 10u);
  drain();  // a block that came and went between two looks is not counted
  for (std::uint64_t name = 3; name < 12; ++name) store(chain(name, 10));
  drain();
  const ArchiveCounts counts = archive_->counts();
  EXPECT_EQ(counts.fetched_blocks, 20u);
  EXPECT_EQ(counts.fetched_bytes, 20 * kBlockBytes);
  EXPECT_EQ(counts.unused_blocks, 10u);
}

// As peers and a directory: the directory's archiver hears of blocks that it has not.
TEST_P(ArchiveTest, UnusedBlocksOfAStoreThatIsNotWrittenAreCountedToo) {
  start();
  const std::vector<BlockHash> wanted = chain(1, 10), unwanted = chain(2, 10);
  store(wanted), store(unwanted);
  drain();
  lose_pool();
  disk_.is_written = false;
  has_second_ = true;
  start({.policy = WritePolicy::kSelective, .selective_uses = 100});
  prefetch(wanted), prefetch(unwanted);
  EXPECT_EQ(load(wanted), 10u);
  drain();
  for (std::uint64_t name = 3; name < 12; ++name) store(chain(name, 10));
  drain();
  EXPECT_EQ(archive_->counts().fetched_blocks, 20u);
  EXPECT_EQ(archive_->counts().unused_blocks, 10u);
}

TEST_P(ArchiveTest, AFullPoolMakesRoomForAChainButNotInIt) {
  lose_pool(64);
  start();
  const std::vector<BlockHash> hashes = chain(1, 60);
  store(hashes);
  drain();
  for (std::uint64_t name = 2; name < 5; ++name) store(chain(name, 60));
  drain();
  EXPECT_EQ(prefetch(hashes).in_pool, 60u);
  EXPECT_EQ(load(hashes), 60u);
}

TEST_P(ArchiveTest, OfAChainLongerThanThePoolEachBlockIsReadAtMostOnceAPrefetch) {
  lose_pool(1000);
  start();
  const std::vector<BlockHash> hashes = chain(1, 900);
  EXPECT_EQ(store(hashes), 900u);
  drain();
  EXPECT_EQ(disk_.count(), 900u);
  lose_pool(64);
  start();
  const Prefetched found = prefetch(hashes);
  EXPECT_GT(found.in_pool, 0u);
  EXPECT_LE(found.in_pool, 64u);
  EXPECT_EQ(load(hashes), found.in_pool);
  EXPECT_LE(archive_->store().counts().got_objects, 128u);
}

// Several engines store, prefetch and load over a small pool and a small storage: every byte is checked.
TEST_P(ArchiveTest, EnginesThatShareASmallPoolNeverSeeWrongBytes) {
  start({}, {.limits = {.objects = 150}});
  for (std::uint64_t round = 0; round < 120; ++round) {
    const std::vector<BlockHash> hashes =
        chain(base::mix64(round) % 12, 1 + base::mix64(~round) % 30);
    (void)prefetch(hashes, round % 3 == 0 ? 0 : kSecond);
    const std::size_t hit = load(hashes);
    if (hit < hashes.size()) store(hashes);
  }
  drain();
  EXPECT_TRUE(archive_->store().catalogue().is_valid());
  EXPECT_EQ(archive_->store().counts().damaged_objects, 0u);
}

INSTANTIATE_TEST_SUITE_P(Domains, ArchiveTest,
                         ::testing::Values(memory::DomainKind::kCoherent,
                                           memory::DomainKind::kNoncoherent),
                         [](const auto& kind) { return memory::domain_name(kind.param); });

}  // namespace
}  // namespace cachalot::node
