#include "storage/breaker.h"

#include <gtest/gtest.h>

namespace cachalot::storage {
namespace {

constexpr std::uint64_t kSecondNs = 1'000'000'000;

class BreakerTest : public ::testing::Test {
 protected:
  void fail_until_open() {
    for (std::uint32_t i = 0; i < Breaker::kFailures; ++i) (void)breaker_.report(false, now_ns_);
    ASSERT_FALSE(breaker_.is_closed());
  }
  // Waits for the next try, a second after the other, as the store does. @return the seconds
  std::uint64_t seconds_until_try() {
    std::uint64_t seconds = 0;
    for (; !breaker_.is_due(now_ns_); ++seconds) now_ns_ += kSecondNs;
    breaker_.admit_trial();
    EXPECT_TRUE(breaker_.is_closed());
    return seconds;
  }

  Breaker breaker_;
  std::uint64_t now_ns_ = 1000 * kSecondNs;
};

TEST_F(BreakerTest, TheThirdFailureInARowOpensItAndTheFirstThatWorksEndsTheOutage) {
  EXPECT_EQ(breaker_.report(false, now_ns_), OutageChange::kNone);
  EXPECT_EQ(breaker_.report(false, now_ns_), OutageChange::kNone);
  EXPECT_EQ(breaker_.report(true, now_ns_), OutageChange::kNone);
  EXPECT_EQ(breaker_.report(false, now_ns_), OutageChange::kNone);
  EXPECT_EQ(breaker_.report(false, now_ns_), OutageChange::kNone);
  EXPECT_TRUE(breaker_.is_closed());
  EXPECT_EQ(breaker_.report(false, now_ns_), OutageChange::kBegan);
  EXPECT_FALSE(breaker_.is_closed());
  EXPECT_EQ(seconds_until_try(), 1u);
  EXPECT_EQ(breaker_.report(true, now_ns_), OutageChange::kEnded);
  EXPECT_EQ(breaker_.outages(), 1u);
}

TEST_F(BreakerTest, TriesThatFailComeLessAndLessOftenAndAreTheSameOutage) {
  fail_until_open();
  for (const std::uint64_t seconds : {1, 2, 4, 8, 16, 32, 60, 60}) {
    EXPECT_EQ(seconds_until_try(), seconds);
    EXPECT_EQ(breaker_.report(false, now_ns_), OutageChange::kNone);
    EXPECT_FALSE(breaker_.is_closed());
  }
  EXPECT_EQ(breaker_.outages(), 1u);
}

TEST_F(BreakerTest, OutagesThatFollowOnEachOtherAreTriedLessAndLessOften) {
  for (const std::uint64_t seconds : {1, 2, 4, 8, 16, 32, 60, 60}) {
    fail_until_open();
    EXPECT_EQ(seconds_until_try(), seconds);
    EXPECT_EQ(breaker_.report(true, now_ns_), OutageChange::kEnded);
  }
  now_ns_ += Breaker::kLongestPauseNs;
  fail_until_open();
  EXPECT_EQ(seconds_until_try(), 1u);
}

TEST_F(BreakerTest, WhatDidNotEvenAnswerIsTriedAsSoonAsItDoes) {
  for (int round = 0; round < 5; ++round) {
    fail_until_open();
    (void)breaker_.report(false, now_ns_);  // of the question
    breaker_.forget_pause();
    EXPECT_EQ(seconds_until_try(), 0u);
    EXPECT_EQ(breaker_.report(true, now_ns_), OutageChange::kEnded);
  }
}

TEST_F(BreakerTest, CallsThatWereInFlightWhenItOpenedChangeNothing) {
  fail_until_open();
  for (int i = 0; i < 10; ++i) EXPECT_EQ(breaker_.report(false, now_ns_), OutageChange::kNone);
  EXPECT_EQ(seconds_until_try(), 1u);
}

}  // namespace
}  // namespace cachalot::storage
