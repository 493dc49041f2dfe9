// What a keeper's options say of which blocks stay: its policy, time to live, pins, priorities.

#include <gtest/gtest.h>

#include <string>

#include "pool/keeper/keeper.h"
#include "testing/pool/test_pool.h"

namespace cachalot::pool {
namespace {

constexpr std::uint64_t kSecond = 1'000'000'000;

class KeeperPolicyTest : public testing::Test {
 protected:
  void make(const KeeperOptions& options, std::uint32_t capacity = 4,
            std::uint32_t directory_slots = 0) {
    Geometry geometry = small_geometry(capacity, 32);
    if (directory_slots != 0) geometry.directory_slots = directory_slots;
    pool_ = std::make_unique<TestPool>(geometry);
    pool_->start_keeper(options);
    raw_ = std::make_unique<RawClient>(*pool_, 0);
    space_ = raw_->open_namespace(5);
    other_space_ = raw_->open_namespace(6);
  }
  void put(std::uint64_t name, std::uint64_t parent = 0, std::uint32_t space = 0) {
    const BlockUse use = raw_->grant(1)[0];
    const BlockHash above = hash_of(parent);
    EXPECT_EQ(raw_->commit_one(space == 0 ? space_ : space, parent == 0 ? nullptr : &above,
                               RawClient::item(name, use)),
              Verdict::kCommitted);
    last_ = use;
  }
  void touch(const BlockUse& use) {
    EXPECT_TRUE(raw_->ask(RawClient::head_of(Op::kTouch, 1, UsesPayload{space_, {use}})).is_yes());
  }
  bool is_there(std::uint64_t name, std::uint32_t space = 0) {
    return pool_->keeper().is_published(hash_of(name), space == 0 ? space_ : space);
  }
  void wait(std::uint64_t ns) {
    pool_->clock().pass(ns);
    for (int i = 0; i < 300; ++i) pool_->keeper().poll();
  }
  std::uint64_t expired() { return pool_->keeper().counters()[KeeperCounter::kExpired]; }
  void TearDown() override {
    if (pool_ == nullptr) return;
    EXPECT_TRUE(pool_->keeper().is_valid());
  }

  std::unique_ptr<TestPool> pool_;
  std::unique_ptr<RawClient> raw_;
  std::uint32_t space_ = 0, other_space_ = 0;
  BlockUse last_{};
};

PinnedBlock pin_of(std::uint64_t name, std::uint64_t digest = 5) {
  return {{digest, 1}, hash_of(name)};
}

TEST_F(KeeperPolicyTest, ThePolicyByItsNameChoosesWhoGoes) {
  make({.policy = "fifo"}, 2);
  put(1);
  const BlockUse first = last_;
  put(2);
  touch(first);
  put(3);
  EXPECT_FALSE(is_there(1));
  make({.policy = "lfu"}, 2);
  put(1);
  touch(last_);
  put(2);
  put(3);
  EXPECT_TRUE(is_there(1) && is_there(3) && !is_there(2));
}

TEST_F(KeeperPolicyTest, WhatAnotherHostHasGoesFirst) {
  for (const bool has_priorities : {false, true}) {
    KeeperOptions options{.copies_first = true};
    if (has_priorities) options.priorities = {{{6, 1}, 5}};
    make(options, 2);
    put(1);
    const BlockUse use = raw_->grant(1)[0];
    CommitItem copy = RawClient::item(2, use);
    copy.flags |= kItemIsCopy;
    EXPECT_EQ(raw_->commit_one(space_, nullptr, copy), Verdict::kCommitted);
    touch(use);
    put(3);
    EXPECT_EQ(is_there(1), !has_priorities);
    EXPECT_EQ(is_there(2), has_priorities);
    EXPECT_TRUE(is_there(3));
  }
}

TEST_F(KeeperPolicyTest, BlocksThatNobodyUsesExpireLeavesFirst) {
  make({.ttl_ns = 10 * kSecond});
  put(1);
  put(2, 1);
  put(3);
  const BlockUse third = last_;
  wait(6 * kSecond);
  EXPECT_TRUE(is_there(1) && is_there(2) && is_there(3));
  touch(third);
  wait(5 * kSecond);
  EXPECT_TRUE(is_there(3));
  EXPECT_FALSE(is_there(1) || is_there(2));
  EXPECT_EQ(expired(), 2u);
  wait(6 * kSecond);
  EXPECT_FALSE(is_there(3));
  EXPECT_EQ(pool_->keeper().counters()[KeeperCounter::kLive], 0u);
}

TEST_F(KeeperPolicyTest, WithoutATimeToLiveNothingExpires) {
  make({});
  put(1);
  wait(1'000'000 * kSecond);
  EXPECT_TRUE(is_there(1));
}

TEST_F(KeeperPolicyTest, WhatAKeeperTakesOverCountsAsUsedThen) {
  KeeperOptions options{.ttl_ns = 10 * kSecond};
  make(options);
  put(1);
  put(2, 1);
  pool_->kill_keeper();
  pool_->clock().pass(60 * kSecond);
  pool_->start_keeper(options);
  EXPECT_TRUE(is_there(1) && is_there(2));
  wait(5 * kSecond);
  EXPECT_TRUE(is_there(1) && is_there(2));
  wait(6 * kSecond);
  EXPECT_FALSE(is_there(1) || is_there(2));
}

TEST_F(KeeperPolicyTest, APinnedBlockAndItsPrefixStayUnderPressureOverExpiryAndTakeovers) {
  KeeperOptions options{.ttl_ns = 10 * kSecond, .pins = {pin_of(9), pin_of(2), pin_of(3, 6)}};
  make(options, 4);
  put(1);
  put(2, 1);
  put(3);  // the pin is of another namespace
  for (std::uint64_t name = 10; name < 20; ++name) put(name);
  EXPECT_TRUE(is_there(1) && is_there(2) && !is_there(3));
  pool_->kill_keeper();
  pool_->start_keeper(options);
  wait(60 * kSecond);
  EXPECT_TRUE(is_there(1) && is_there(2));
  EXPECT_EQ(pool_->keeper().counters()[KeeperCounter::kLive], 2u);
}

TEST_F(KeeperPolicyTest, WhereAllIsPinnedAStoreIsRefusedAndAnOperatorCanStillEvict) {
  make({.pins = {pin_of(1), pin_of(2)}}, 2);
  put(1);
  put(2);
  const BlockUse use = raw_->grant(1)[0];
  EXPECT_EQ(raw_->commit_one(space_, nullptr, RawClient::item(3, use)), Verdict::kNoRoom);
  const KeeperCounters& counters = pool_->keeper().counters();
  EXPECT_EQ(counters[KeeperCounter::kNoSpaceCommits], 1u);
  EXPECT_EQ(counters[KeeperCounter::kRefused], 1u);
  EXPECT_EQ(counters[KeeperCounter::kNoParentCommits], 0u);
  const BlockHash hash = hash_of(1);
  EXPECT_TRUE(
      raw_->ask(RawClient::head_of(Op::kEvict, 0,
                                   EvictPayload{space_, EvictScope::kBlock, hash.low, hash.high}))
          .is_yes());
  put(3);
  EXPECT_TRUE(is_there(2) && is_there(3) && !is_there(1));
  EXPECT_TRUE(pool_->keeper().is_valid());
  put(4);  // drives out 3
  EXPECT_TRUE(is_there(2) && is_there(4) && !is_there(3));
}

TEST_F(KeeperPolicyTest, AFullBucketGivesUpNoPinnedBlock) {
  KeeperOptions options;
  for (std::uint64_t name = 1; name <= 64; ++name) {
    if (name != 40) options.pins.push_back(pin_of(name));
  }
  make(options, 100, 64);  // one bucket of 64 slots for 100 blocks
  for (std::uint64_t name = 1; name <= 65; ++name) put(name);
  EXPECT_FALSE(is_there(40));
  put(66);  // drives out 65
  for (std::uint64_t name = 1; name <= 66; ++name) {
    EXPECT_EQ(is_there(name), name != 40 && name != 65) << name;
  }
  options.pins.push_back(pin_of(66));
  pool_->kill_keeper();
  pool_->start_keeper(options);
  raw_ = std::make_unique<RawClient>(*pool_, 1);
  EXPECT_EQ(raw_->commit_one(space_, nullptr, RawClient::item(67, raw_->grant(1)[0])),
            Verdict::kNoRoom);
}

TEST_F(KeeperPolicyTest, NamespacesOfLowerPriorityGoFirst) {
  KeeperOptions options{.priorities = {{{5, 1}, 1}}};  // the other one has the default
  make(options, 3);
  put(1, 0, other_space_);
  put(2);
  put(3);
  put(4, 0, other_space_);
  EXPECT_TRUE(is_there(1, other_space_) && !is_there(2) && is_there(3));
  pool_->kill_keeper();
  pool_->start_keeper(options);
  raw_ = std::make_unique<RawClient>(*pool_, 1);
  put(5, 0, other_space_);
  EXPECT_TRUE(is_there(1, other_space_) && is_there(4, other_space_) && !is_there(3));
  put(6);  // the low one has nothing to give but what it stores now
  EXPECT_FALSE(is_there(1, other_space_));
  EXPECT_TRUE(is_there(6));
}

TEST_F(KeeperPolicyTest, ANamespaceOverItsQuotaGivesWayFirstAndKeepsToItUnderPressure) {
  const std::uint64_t block_bytes = small_geometry().block_bytes;
  KeeperOptions options{.quotas = {{{5, 1}, 3 * block_bytes + 1}}};
  make(options, 8);
  for (std::uint64_t name = 1; name <= 4; ++name) put(name, 0, other_space_);
  for (std::uint64_t name = 11; name <= 14; ++name)
    put(name);  // one more than its quota: there is room
  const auto live = [&](std::uint32_t space) {
    pool_->keeper().tend();
    const KeeperView keeper = DirectoryReader(pool_->access()).read_keepers();
    return read_namespace_counters(pool_->access(), keeper.keeper, keeper.epoch, space);
  };
  EXPECT_EQ(live(space_), (NamespaceCounters{4, 3, 4, 0}));
  EXPECT_EQ(live(other_space_), (NamespaceCounters{4, 0, 4, 0}));
  for (std::uint64_t name = 15; name <= 30; ++name) {
    put(name);
    EXPECT_LE(live(space_).live_blocks, 5u) << name;
  }
  // The other one lost no more than the block beyond the quota took.
  EXPECT_GE(live(other_space_).live_blocks, 3u);
  put(31, 0, other_space_);
  put(32, 0, other_space_);
  EXPECT_EQ(live(space_).live_blocks, 3u);
  EXPECT_TRUE(pool_->keeper().is_valid());
  // A takeover counts what is there.
  pool_->kill_keeper();
  pool_->start_keeper(options);
  EXPECT_EQ(live(space_), (NamespaceCounters{3, 3, 0, 0}));
}

TEST_F(KeeperPolicyTest, AWholeNamespaceIsDroppedPinsTooAndNoOther) {
  make({.pins = {pin_of(2)}}, 8);
  put(1);
  put(2, 1);
  put(3, 1);
  put(4, 0, other_space_);
  const RawClient::Answer dropped = raw_->ask(
      RawClient::head_of(Op::kEvict, 0, EvictPayload{space_, EvictScope::kNamespace, 0, 0}));
  ASSERT_TRUE(dropped.is_yes());
  EXPECT_EQ(dropped.payload<EvictAnswer>().evicted, 3u);
  EXPECT_FALSE(is_there(1) || is_there(2) || is_there(3));
  EXPECT_TRUE(is_there(4, other_space_));
  EXPECT_TRUE(pool_->keeper().is_valid());
  for (const auto& [space, scope] : {std::pair(99u, 2u), std::pair(space_, 3u)}) {
    EXPECT_FALSE(
        raw_->ask(RawClient::head_of(Op::kEvict, 0,
                                     EvictPayload{space, static_cast<EvictScope>(scope), 0, 0}))
            .is_yes());
  }
}

TEST(KeeperOptions, APriorityOutOfRangeAndAPolicyOfStreamsAreErrors) {
  const Status priority = KeeperOptions{.priorities = {{{5, 1}, 8}}}.check();
  ASSERT_FALSE(priority);
  EXPECT_STREQ(priority.error().message, "priority of a namespace: 8, expected 0 to 7");
  const Status policy = KeeperOptions{.policy = "arc"}.check();
  ASSERT_FALSE(policy);
  EXPECT_EQ(policy.error().code, Code::kInvalidArgument);
}

}  // namespace
}  // namespace cachalot::pool
