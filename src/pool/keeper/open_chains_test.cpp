// What eviction spares while it is being written, and what a small pool holds in advance.

#include "pool/keeper/open_chains.h"

#include <gtest/gtest.h>

#include "testing/pool/test_pool.h"

namespace cachalot::pool {
namespace {

TEST(OpenChains, KnowTheTailsOfWhatGoesOn) {
  OpenChains chains;
  chains.open(0, 10);
  chains.open(1, 20);
  EXPECT_TRUE(chains.has_tail(10));
  chains.close(1, 10);  // another client's
  EXPECT_TRUE(chains.has_tail(10));
  chains.close(0, 10);
  chains.open(0, 11);
  EXPECT_FALSE(chains.has_tail(10));
  EXPECT_TRUE(chains.has_tail(11));
  chains.forget_block(20);
  EXPECT_FALSE(chains.has_tail(20));
  chains.forget_client(0);
  EXPECT_EQ(chains.size(), 0u);
}

TEST(OpenChains, AClientHasAFewAndTheOldestIsForgotten) {
  OpenChains chains;
  for (std::uint32_t i = 0; i <= OpenChains::kMostOfAClient; ++i) chains.open(5, i);
  chains.open(6, 100);
  EXPECT_EQ(chains.size(), OpenChains::kMostOfAClient + 1);
  EXPECT_FALSE(chains.has_tail(0));
  EXPECT_TRUE(chains.has_tail(1));
}

TEST(OpenChains, WhoIsRefusedGivesUpItsOwnFirst) {
  OpenChains chains;
  chains.open(0, 10);
  chains.open(1, 20);
  chains.give_way(1);
  EXPECT_FALSE(chains.has_tail(20));
  chains.give_way(1);
  EXPECT_FALSE(chains.has_tail(10));
  chains.give_way(1);
}

class ChainsInAFullPool : public testing::Test {
 protected:
  void make(std::uint32_t capacity, std::uint32_t spare) {
    pool_ = std::make_unique<TestPool>(small_geometry(capacity, spare));
    pool_->start_keeper();
    for (std::uint32_t i = 0; i < 2; ++i)
      writers_.push_back(std::make_unique<RawClient>(*pool_, i));
    space_ = writers_[0]->open_namespace();
  }
  // Commits names first, first + 1, … behind `parent` (0: none). @return how many were taken
  std::size_t commit(std::size_t writer, std::uint64_t first, std::uint16_t count,
                     std::uint64_t parent, bool goes_on) {
    const std::vector<BlockUse> uses = writers_[writer]->grant(count);
    EXPECT_EQ(uses.size(), count);
    std::vector<CommitItem> items;
    for (std::size_t i = 0; i < uses.size(); ++i)
      items.push_back(RawClient::item(first + i, uses[i]));
    const BlockHash before = hash_of(parent);
    const auto verdicts = writers_[writer]->commit(space_, parent == 0 ? nullptr : &before, items,
                                                   goes_on ? kCommitGoesOn : 0);
    last_ = verdicts.empty() ? Verdict::kBadItem : verdicts.back();
    return static_cast<std::size_t>(
        std::count(verdicts.begin(), verdicts.end(), Verdict::kCommitted));
  }
  std::size_t published(std::uint64_t first, std::uint64_t count) {
    std::size_t there = 0;
    for (std::uint64_t i = 0; i < count; ++i)
      there += pool_->keeper().is_published(hash_of(first + i), space_);
    return there;
  }
  void TearDown() override { EXPECT_TRUE(pool_->keeper().is_valid()); }

  std::unique_ptr<TestPool> pool_;
  std::vector<std::unique_ptr<RawClient>> writers_;
  std::uint32_t space_ = 0;
  Verdict last_{};
};

TEST_F(ChainsInAFullPool, WhatIsBeingWrittenStaysWhileAnythingElseIsThere) {
  make(8, 32);
  EXPECT_EQ(commit(0, 1, 4, 0, true), 4u);
  for (std::uint64_t chain = 100; chain < 1000; chain += 100)
    EXPECT_EQ(commit(1, chain, 4, 0, false), 4u);
  EXPECT_EQ(published(1, 4), 4u);
  EXPECT_EQ(commit(0, 5, 4, 4, false), 4u);
  EXPECT_EQ(published(1, 8), 8u);
  commit(1, 2000, 4, 0, false);  // it goes on no more: what was used longest ago goes
  EXPECT_EQ(published(1, 8), 4u);
}

TEST_F(ChainsInAFullPool, AGrantDoesNotTakeWhatIsBeingWrittenEither) {
  make(8, 0);
  EXPECT_EQ(commit(0, 1, 2, 0, true), 2u);
  EXPECT_EQ(commit(1, 11, 4, 0, false), 4u);
  EXPECT_EQ(writers_[1]->grant(8).size(), 6u);  // two were free
  EXPECT_EQ(published(1, 2), 2u);
  EXPECT_EQ(published(11, 4), 0u);
}

TEST_F(ChainsInAFullPool, TwoThatDoNotFitAreToldSoAndOneGoesOn) {
  make(8, 32);
  EXPECT_EQ(commit(0, 1, 4, 0, true), 4u);
  EXPECT_EQ(commit(1, 11, 4, 0, true), 4u);
  EXPECT_EQ(commit(1, 15, 1, 14, true), 0u);
  EXPECT_EQ(last_, Verdict::kNoRoom);
  EXPECT_EQ(published(1, 4) + published(11, 4), 8u);  // without any loss
  EXPECT_EQ(commit(0, 5, 4, 4, false), 4u);           // that one was told that it ends here
  EXPECT_EQ(published(1, 8), 8u);
}

TEST_F(ChainsInAFullPool, AWriterThatNeverGoesOnHoldsNobodyUpForLong) {
  make(8, 0);
  EXPECT_EQ(commit(0, 1, 8, 0, true), 8u);
  EXPECT_EQ(writers_[1]->ask(RawClient::head_of(Op::kGrant, 4)).code(), Code::kNoSpace);
  EXPECT_EQ(published(1, 8), 8u);
  EXPECT_EQ(commit(1, 11, 4, 0, false), 4u);
}

TEST_F(ChainsInAFullPool, AWriterThatLeavesHoldsNothing) {
  make(8, 0);
  EXPECT_EQ(commit(0, 1, 8, 0, true), 8u);
  EXPECT_TRUE(writers_[0]->ask(RawClient::head_of(Op::kDetach)).is_yes());
  EXPECT_EQ(commit(1, 11, 4, 0, false), 4u);
}

TEST_F(ChainsInAFullPool, AnOperatorStillEvictsAll) {
  make(8, 0);
  EXPECT_EQ(commit(0, 1, 8, 0, true), 8u);
  const auto answer = writers_[1]->ask(
      RawClient::head_of(Op::kEvict, 0, EvictPayload{space_, EvictScope::kAll, 0, 0}));
  EXPECT_EQ(answer.payload<EvictAnswer>().evicted, 8u);
}

TEST_F(ChainsInAFullPool, AnUnknownFlagIsRefused) {
  make(8, 8);
  const CommitItem item = RawClient::item(1, writers_[0]->grant(1)[0]);
  EXPECT_TRUE(writers_[0]->commit(space_, nullptr, {&item, 1}, 2).empty());
}

TEST(Advance, OfAllClientsIsAtMostHalfOfASmallPool) {
  TestPool pool(small_geometry(30, 30));
  pool.start_keeper();
  std::vector<std::unique_ptr<Client>> clients;
  for (std::uint32_t i = 0; i < 3; ++i) clients.push_back(pool.attach(i));
  for (int round = 0; round < 20; ++round) {
    for (std::uint32_t i = 0; i < 3; ++i) {
      const std::uint64_t first = static_cast<std::uint64_t>(1000 * round + 100 * i + 1);
      const std::vector<Verdict> verdicts = pool.put(*clients[i], first, 25);
      EXPECT_EQ(std::count(verdicts.begin(), verdicts.end(), Verdict::kCommitted), 25)
          << round << " " << i;
      EXPECT_LE(clients[i]->grants().held(), 10u);
      EXPECT_EQ(pool.read(*clients[i], first, 25), 25u);
    }
  }
  EXPECT_EQ(clients[0]->grants().advance(), 10u);
  EXPECT_TRUE(pool.keeper().is_valid());
}

TEST(Advance, IsWhatWasAskedForWhereThereIsRoom) {
  TestPool pool(small_geometry(4096, 256));
  pool.start_keeper();
  EXPECT_EQ(pool.attach(0)->grants().advance(), 64u);
}

}  // namespace
}  // namespace cachalot::pool
