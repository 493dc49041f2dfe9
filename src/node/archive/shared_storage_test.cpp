// Storage that other hosts write, too.

#include "node/archive/archive_test_pool.h"

namespace cachalot::node {
namespace {

class SharedStorageTest : public ArchiveTest {};

TEST_P(SharedStorageTest, WhatAnotherHostHasPutIsFoundWithoutARestart) {
  disk_.is_shared = true;
  start();
  const std::vector<BlockHash> hashes = chain(1, 40), longer = chain(1, 50);
  put_elsewhere(hashes);
  EXPECT_EQ(*client_->lookup(hashes), 0u);
  EXPECT_EQ(disk_.read(disk_.head_calls), 0u) << "a lookup has not said that it waits";
  EXPECT_EQ(prefetch(longer).in_pool, 40u);
  EXPECT_LE(disk_.read(disk_.head_calls), 4u);
  EXPECT_EQ(load(longer), 40u);
}

TEST_P(SharedStorageTest, APrefetchThatDoesNotWaitBringsTheBlocksOfAnotherHostLater) {
  disk_.is_shared = true;
  start();
  const std::vector<BlockHash> hashes = chain(1, 40);
  put_elsewhere(hashes);
  EXPECT_TRUE(prefetch(hashes, 0).is_asking);
  const std::uint64_t until_ns = base::SteadyClock::read() + 20 * kSecond;
  while (*client_->lookup(hashes) < 40 && base::SteadyClock::read() < until_ns)
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  EXPECT_EQ(load(hashes), 40u);
}

TEST_P(SharedStorageTest, ALongChainOfAnotherHostTakesFewRoundTrips) {
  disk_.is_shared = true;
  lose_pool(capacity_ = 2100);
  start();
  const std::vector<BlockHash> hashes = chain(1, 2000);
  put_elsewhere(hashes);
  EXPECT_EQ(prefetch(hashes).in_pool, 2000u);
  EXPECT_LE(disk_.read(disk_.head_calls), 12u);
  EXPECT_EQ(load(hashes), 2000u);
}

TEST_P(SharedStorageTest, AMissOfStorageThatIsSharedCostsOneRoundTrip) {
  disk_.is_shared = true;
  start();
  const std::vector<BlockHash> hashes = chain(1, 500);
  const Prefetched found = prefetch(hashes);
  EXPECT_EQ(found.in_pool + found.in_storage, 0u);
  EXPECT_FALSE(found.is_asking);
  EXPECT_EQ(disk_.read(disk_.head_calls), 1u);
}

TEST_P(SharedStorageTest, ABlockIsFoundOnceAnotherHostHasPutIt) {
  disk_.is_shared = true;
  start();
  const std::vector<BlockHash> hashes = chain(1, 20);
  put_elsewhere(hashes);
  {
    const std::lock_guard lock(disk_.mutex);
    disk_.objects.clear();
  }
  EXPECT_EQ(prefetch(hashes).in_pool, 0u);
  {
    const std::lock_guard lock(disk_.mutex);
    disk_.objects = objects_elsewhere_;
  }
  std::this_thread::sleep_for(std::chrono::nanoseconds(Finder::kAbsentNs));
  EXPECT_EQ(prefetch(hashes).in_pool, 20u);
  EXPECT_EQ(load(hashes), 20u);
}

TEST_P(SharedStorageTest, WhatAnotherHostRemovesIsAMissAndWhatItPutsAgainAHit) {
  disk_.is_shared = true;
  start();
  const std::vector<BlockHash> hashes = chain(1, 20);
  put_elsewhere(hashes);
  EXPECT_EQ(prefetch(hashes).in_pool, 20u);
  store(chain(2, 60));
  ASSERT_LT(*client_->lookup(hashes), 5u);
  {
    const std::lock_guard lock(disk_.mutex);
    disk_.objects.erase({disk_.objects.begin()->first.space, hashes[5]});
  }
  EXPECT_EQ(prefetch(hashes).in_pool, 5u);
  {
    const std::lock_guard lock(disk_.mutex);
    disk_.objects = objects_elsewhere_;
  }
  std::this_thread::sleep_for(std::chrono::nanoseconds(Finder::kAbsentNs));
  EXPECT_EQ(prefetch(hashes).in_pool, 20u);
  EXPECT_EQ(load(hashes), 20u);
}

TEST_P(SharedStorageTest, WhatAnotherHostHasPutIsNotWrittenAgain) {
  disk_.is_shared = true;
  start();
  const std::vector<BlockHash> hashes = chain(1, 20), longer = chain(1, 24);
  put_elsewhere(hashes);
  EXPECT_EQ(store(longer), 24u);
  drain();
  EXPECT_EQ(disk_.count(), 24u);
  EXPECT_EQ(archive_->store().counts().put_objects, 4u);
}

// The pool has the beginning of the chain, which this host has not written.
TEST_P(SharedStorageTest, AChainOfAnotherHostMayGoOnWhereThePoolEnds) {
  disk_.is_shared = true;
  start();
  const std::vector<BlockHash> hashes = chain(1, 30);
  put_elsewhere(hashes);
  stop();
  disk_.objects.clear();  // so that no list has them
  start({.policy = WritePolicy::kSelective, .selective_uses = 100});
  {
    const std::lock_guard lock(disk_.mutex);
    disk_.objects = objects_elsewhere_;
    for (std::size_t i = 0; i < 10; ++i)
      disk_.objects.erase({objects_elsewhere_.begin()->first.space, hashes[i]});
  }
  EXPECT_EQ(store(std::span(hashes).first(10)), 10u);
  EXPECT_EQ(prefetch(hashes).in_pool, 30u);
  EXPECT_EQ(load(hashes), 30u);
}

// Each block before the one that is asked for is a round trip.
TEST_P(SharedStorageTest, AKeeperEndsThoughTheBeginningOfAChainIsStillAskedFor) {
  disk_.is_shared = true;
  lose_pool(capacity_ = 600);
  start();
  const std::vector<BlockHash> hashes = chain(1, 500);
  put_elsewhere(hashes);
  const auto calls = std::make_shared<std::atomic<int>>(0);
  {
    const std::lock_guard lock(disk_.mutex);
    disk_.on_heads = [calls] {
      ++*calls;
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    };
  }
  EXPECT_TRUE(prefetch(std::span(hashes).last(1), 0).is_asking);
  while (*calls < 5) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  stop();
  EXPECT_LT(*calls, 400);
}

TEST_P(SharedStorageTest, StorageThatDoesNotAnswerHoldsUpNoCallLongerThanItWaits) {
  disk_.is_shared = true;
  start();
  const auto answers = std::make_shared<std::atomic<bool>>(false);
  {
    const std::lock_guard lock(disk_.mutex);
    disk_.on_heads = [answers] {
      while (!*answers) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    };
  }
  const std::vector<BlockHash> hashes = chain(1, 20), other = chain(2, 20);
  EXPECT_TRUE(prefetch(hashes, kSecond / 50).is_asking);
  EXPECT_TRUE(prefetch(other, kSecond / 50).is_asking);
  EXPECT_EQ(store(hashes), 20u);
  EXPECT_EQ(load(hashes), 20u);
  *answers = true;
  EXPECT_FALSE(prefetch(other).is_asking);
}

TEST_P(SharedStorageTest, QuestionsThatFailAreMissesAndAnOutage) {
  disk_.is_shared = true;
  start();
  disk_.fail(Error::make(Code::kIo, "the server is down"));
  for (std::uint64_t name = 1; archive_->counts().is_up && name < 10; ++name) {
    const Prefetched found = prefetch(chain(name, 20));
    EXPECT_EQ(found.in_pool + found.in_storage, 0u);
  }
  EXPECT_FALSE(archive_->counts().is_up);
  EXPECT_FALSE(prefetch(chain(20, 20)).is_asking);
}

INSTANTIATE_TEST_SUITE_P(Domains, SharedStorageTest,
                         ::testing::Values(memory::DomainKind::kCoherent,
                                           memory::DomainKind::kNoncoherent),
                         [](const auto& kind) { return memory::domain_name(kind.param); });

}  // namespace
}  // namespace cachalot::node
