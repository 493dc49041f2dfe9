// What a keeper's options say of which blocks stay: its policy, time to live, pins, priorities.

#include <gtest/gtest.h>

#include <string>

#include "pool/keeper/service/keeper.h"
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
    make(options, geometry);
  }
  void make(const KeeperOptions& options, const Geometry& geometry) {
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

class ContextTest : public KeeperPolicyTest {
 protected:
  void make_with_time(KeeperOptions options, std::uint32_t capacity = 8) {
    options.unix_s = [this] { return now_s_; };
    options.suspect_after_ns = 0;  // this client has no heartbeat
    options_ = options;
    Geometry geometry = small_geometry(capacity, 32);
    geometry.clients = 8;  // fewer have no room for contexts
    make(options, geometry);
  }
  std::pair<Code, ContextAnswer> ask(ContextAction action, std::uint64_t name_or_handle,
                                     std::uint64_t ttl_s, std::uint32_t space) {
    ContextPayload wanted{space, action, 0, ttl_s, 0, 0};
    if (action == ContextAction::kCreate) {
      wanted.hash_low = hash_of(name_or_handle).low;
      wanted.hash_high = hash_of(name_or_handle).high;
    } else {
      wanted.handle = name_or_handle;
    }
    const RawClient::Answer answer = raw_->ask(RawClient::head_of(Op::kContext, 0, wanted));
    return {answer.code(), answer.is_yes() ? answer.payload<ContextAnswer>() : ContextAnswer{}};
  }
  void pass(std::uint64_t seconds) {
    now_s_ += seconds;
    wait(seconds * kSecond);
  }
  std::vector<ContextLine> in_the_pool() const {
    const KeeperView keeper = DirectoryReader(pool_->access()).read_keepers();
    return read_contexts(pool_->access(), keeper.keeper, keeper.epoch);
  }

  std::uint64_t now_s_ = 1'000'000;
  KeeperOptions options_;
};

TEST_F(ContextTest, KeepsABlockAndItsPrefixUnderPressureUntilItsTimeEnds) {
  make_with_time({.ttl_ns = 100 * kSecond}, 4);
  put(1);
  put(2, 1);
  const auto [code, context] = ask(ContextAction::kCreate, 2, 60, space_);
  ASSERT_EQ(code, Code{});
  EXPECT_EQ(context.blocks, 2u);
  EXPECT_EQ(context.expires_unix_s, now_s_ + 60);
  for (std::uint64_t name = 10; name < 20; ++name) put(name);
  EXPECT_TRUE(is_there(1) && is_there(2));
  pass(50);
  ASSERT_EQ(ask(ContextAction::kRenew, context.handle, 90, space_).first, Code{});
  pass(80);  // longer than it was for at first
  for (std::uint64_t name = 20; name < 30; ++name) put(name);
  EXPECT_TRUE(is_there(1) && is_there(2));
  ASSERT_EQ(in_the_pool().size(), 1u);
  EXPECT_EQ(in_the_pool()[0].handle, context.handle);
  pass(20);
  EXPECT_TRUE(in_the_pool().empty());
  for (std::uint64_t name = 30; name < 40; ++name) put(name);
  EXPECT_FALSE(is_there(1) || is_there(2));
  EXPECT_EQ(ask(ContextAction::kRenew, context.handle, 60, space_).first, Code::kNotFound);
  EXPECT_TRUE(pool_->keeper().is_valid());
}

TEST_F(ContextTest, IsDroppedByItsHandleAndOnlyByItsNamespace) {
  make_with_time({}, 4);
  put(1);
  const ContextAnswer context = ask(ContextAction::kCreate, 1, 60, space_).second;
  EXPECT_EQ(ask(ContextAction::kDrop, context.handle, 0, other_space_).first, Code::kNotFound);
  EXPECT_EQ(ask(ContextAction::kDrop, context.handle, 0, space_).first, Code{});
  EXPECT_EQ(ask(ContextAction::kDrop, context.handle, 0, space_).first, Code::kNotFound);
  for (std::uint64_t name = 10; name < 20; ++name) put(name);
  EXPECT_FALSE(is_there(1));
}

TEST_F(ContextTest, ASuccessorHasThoseWhoseTimeHasNotPassed) {
  make_with_time({}, 8);
  put(1);
  put(2, 1);
  put(3);
  const ContextAnswer first = ask(ContextAction::kCreate, 2, 100, space_).second;
  ask(ContextAction::kCreate, 3, 10, space_);
  pool_->kill_keeper();
  now_s_ += 50;
  pool_->start_keeper(options_);
  raw_ = std::make_unique<RawClient>(*pool_, 1);
  ASSERT_EQ(in_the_pool().size(), 1u);
  EXPECT_EQ(in_the_pool()[0].handle, first.handle);
  EXPECT_EQ(in_the_pool()[0].blocks, 2u);
  for (std::uint64_t name = 10; name < 30; ++name) put(name);
  EXPECT_TRUE(is_there(1) && is_there(2) && !is_there(3));
  // A new one has another handle.
  EXPECT_NE(ask(ContextAction::kCreate, 2, 60, space_).second.handle, first.handle);
}

TEST_F(ContextTest, AnOperatorEvictsItAllTheSame) {
  make_with_time({}, 8);
  put(1);
  put(2, 1);
  put(3, 2);
  ask(ContextAction::kCreate, 2, 60, space_);
  ask(ContextAction::kCreate, 2, 60, space_);
  const BlockHash hash = hash_of(1);
  ASSERT_TRUE(
      raw_->ask(RawClient::head_of(Op::kEvict, 0,
                                   EvictPayload{space_, EvictScope::kBlock, hash.low, hash.high}))
          .is_yes());
  EXPECT_TRUE(in_the_pool().empty());
  pass(2);
  put(1);
  EXPECT_EQ(ask(ContextAction::kCreate, 1, 60, space_).first, Code{});
  EXPECT_TRUE(pool_->keeper().is_valid());
}

TEST_F(ContextTest, KeepsNoMoreThanHalfOfThePoolAndTheQuota) {
  make_with_time({.quotas = {{{6, 1}, 2 * small_geometry().block_bytes}}}, 16);
  for (std::uint64_t name = 1; name <= 9; ++name) put(name, name - 1);
  EXPECT_EQ(ask(ContextAction::kCreate, 9, 60, space_).first, Code::kNoSpace);
  EXPECT_EQ(ask(ContextAction::kCreate, 3, 60, space_).first, Code{});
  EXPECT_EQ(ask(ContextAction::kCreate, 2, 60, space_).first, Code{});  // nothing more is kept
  for (std::uint64_t name = 11; name <= 13; ++name) put(name, 0, other_space_);
  EXPECT_EQ(ask(ContextAction::kCreate, 11, 60, other_space_).first, Code{});
  EXPECT_EQ(ask(ContextAction::kCreate, 12, 60, other_space_).first, Code{});
  EXPECT_EQ(ask(ContextAction::kCreate, 13, 60, other_space_).first, Code::kNoSpace);
}

TEST_F(ContextTest, WhatIsNotThereOrOutOfRangeIsRefused) {
  make_with_time({}, 8);
  put(1);
  EXPECT_EQ(ask(ContextAction::kCreate, 99, 60, space_).first, Code::kNotFound);
  EXPECT_EQ(ask(ContextAction::kCreate, 1, 60, 200).first, Code::kInvalidArgument);
  EXPECT_EQ(ask(ContextAction::kCreate, 1, kMostContextSeconds + 1, space_).first,
            Code::kInvalidArgument);
  EXPECT_EQ(ask(static_cast<ContextAction>(9), 1, 60, space_).first, Code::kInvalidArgument);
  EXPECT_EQ(ask(ContextAction::kRenew, 0, 60, space_).first, Code::kNotFound);
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
