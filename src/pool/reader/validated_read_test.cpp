// Rule R6 by itself: which of the blocks that were copied count.

#include "pool/reader/validated_read.h"

#include <gtest/gtest.h>

#include <memory>
#include <vector>

#include "memory/forwarding_domain.h"
#include "pool/client/client.h"
#include "testing/pool/test_pool.h"

namespace cachalot::pool {
namespace {

class CountingDomain final : public memory::ForwardingDomain {
 public:
  void gather_lines(const void* const* from, std::size_t n, memory::Line* lines) override {
    ++gathers;
    ForwardingDomain::gather_lines(from, n, lines);
  }
  int gathers = 0;
};

class ValidatedReadTest : public ::testing::Test {
 protected:
  ValidatedReadTest() {
    auto domain = std::make_unique<CountingDomain>();
    domain_ = domain.get();
    pool_ = std::make_unique<TestPool>(small_geometry(), std::move(domain));
    pool_->start_keeper();
    ClientOptions options;
    options.write_checksums = true;
    client_ = pool_->attach(0, options);
  }

  // Blocks 1 to n, each a chain of its own, found by a reader that verifies.
  ValidatedRead look_up(std::size_t n) {
    std::vector<BlockHash> hashes;
    for (std::uint64_t name = 1; name <= n; ++name) {
      pool_->put(*client_, name, 1);
      hashes.push_back(hash_of(name));
    }
    room_.resize(n);
    ValidatedRead read =
        ValidatedRead::look_up(pool_->access(), hashes, client_->namespace_id(), room_, true);
    EXPECT_EQ(read.found().size(), n);
    return read;
  }
  void evict(std::uint64_t name) { ASSERT_TRUE(client_->requests().evict(hash_of(name))); }
  void evict_and_put_again(std::uint64_t name) {
    evict(name);
    pool_->put(*client_, name, 1);
  }

  std::unique_ptr<TestPool> pool_;
  CountingDomain* domain_ = nullptr;
  std::unique_ptr<Client> client_;
  std::vector<Found> room_;
};

TEST_F(ValidatedReadTest, WhatDidNotChangeCounts) {
  ValidatedRead read = look_up(5);
  pool_->put(*client_, 100, 50);  // neighbours come: spill bits change, the entries do not
  const auto [valid, stale, is_damaged] = read.validate();
  EXPECT_EQ(valid, 5u);
  EXPECT_EQ(stale, 0u);
  EXPECT_FALSE(is_damaged);
  EXPECT_EQ(read.found().size(), 5u);
}

TEST_F(ValidatedReadTest, TheBlocksBeforeTheFirstChangedOneCount) {
  ValidatedRead read = look_up(5);
  evict(3);
  const auto [valid, stale, is_damaged] = read.validate();
  EXPECT_EQ(valid, 2u);
  EXPECT_EQ(stale, 3u);
  EXPECT_FALSE(is_damaged);
  ASSERT_EQ(read.found().size(), 2u);
  EXPECT_EQ(read.found()[1].entry.hash_low, hash_of(2).low);
}

TEST_F(ValidatedReadTest, AnotherUseOfTheSameHashIsAChange) {
  ValidatedRead read = look_up(3);
  evict_and_put_again(2);
  EXPECT_EQ(read.validate().valid, 1u);
}

TEST_F(ValidatedReadTest, UnderAnotherKeeperNothingCounts) {
  ValidatedRead read = look_up(3);
  pool_->kill_keeper();
  pool_->start_keeper();
  EXPECT_EQ(read.validate().valid, 0u);
}

TEST_F(ValidatedReadTest, WhatDoesNotCountOnceNeverCountsAgain) {
  ValidatedRead read = look_up(5);
  const Entry entry = pool_->entry_of(hash_of(4));
  const std::uint64_t line = pool_->access().layout.entry(room_[3].slot);
  evict(4);
  EXPECT_EQ(read.validate().valid, 3u);
  pool_->put_line(line, entry);  // as it was
  const ValidatedRead::Outcome again = read.validate();
  EXPECT_EQ(again.valid, 3u);
  EXPECT_EQ(again.stale, 0u);
}

TEST_F(ValidatedReadTest, WrongBytesOfAnUnchangedBlockAreDamage) {
  ValidatedRead read = look_up(5);
  ASSERT_TRUE(read.has_checksum(2));
  EXPECT_TRUE(read.check_bytes(1, room_[1].entry.checksum));
  EXPECT_FALSE(read.check_bytes(2, room_[2].entry.checksum + 1));
  EXPECT_EQ(read.found().size(), 2u);
  ValidatedRead::Outcome outcome = read.validate();
  EXPECT_EQ(outcome.valid, 2u);
  EXPECT_EQ(outcome.stale, 0u);
  EXPECT_TRUE(outcome.is_damaged);
  outcome = read.validate();  // said once
  EXPECT_EQ(outcome.valid, 2u);
  EXPECT_FALSE(outcome.is_damaged);
}

TEST_F(ValidatedReadTest, WrongBytesOfAChangedBlockAreNoDamage) {
  ValidatedRead read = look_up(5);
  evict(3);
  read.reject(2);
  const auto [valid, stale, is_damaged] = read.validate();
  EXPECT_EQ(valid, 2u);
  EXPECT_EQ(stale, 1u);
  EXPECT_FALSE(is_damaged);
}

TEST_F(ValidatedReadTest, WhatIsLeftOutIsNotLookedAt) {
  ValidatedRead read = look_up(5);
  evict(4);
  read.reject(3);
  read.shorten(2);
  const auto [valid, stale, is_damaged] = read.validate();
  EXPECT_EQ(valid, 2u);
  EXPECT_EQ(stale, 0u);
  EXPECT_FALSE(is_damaged);
}

TEST_F(ValidatedReadTest, UnderAPinTheLinesAreNotReadAgain) {
  ValidatedRead read = look_up(3);
  read.reject(2);
  const int before = domain_->gathers;
  const auto [valid, stale, is_damaged] = read.validate(true);
  EXPECT_EQ(domain_->gathers, before);
  EXPECT_EQ(valid, 2u);
  EXPECT_EQ(stale, 0u);
  EXPECT_TRUE(is_damaged);
  evict(2);  // the pin is over
  EXPECT_EQ(read.validate().valid, 1u);
}

TEST_F(ValidatedReadTest, AReaderThatDoesNotVerifyAsksForNoChecksum) {
  (void)look_up(1);
  const BlockHash hash = hash_of(1);
  const ValidatedRead read =
      ValidatedRead::look_up(pool_->access(), {&hash, 1}, client_->namespace_id(), room_, false);
  ASSERT_EQ(read.found().size(), 1u);
  EXPECT_FALSE(read.has_checksum(0));
}

}  // namespace
}  // namespace cachalot::pool
