#include "storage/write_budget.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

namespace cachalot::storage {
namespace {

constexpr std::uint64_t kHourNs = 3'600'000'000'000;

TEST(WriteBudgetTest, WithoutALimitAllIsAdmitted) {
  WriteBudget budget(0);
  for (int i = 0; i < 100; ++i) EXPECT_TRUE(budget.admits(~0ull, 1));
}

TEST(WriteBudgetTest, AnHoursBytesMayComeSimultaneouslyAndThenAreRefused) {
  WriteBudget budget(24'000);
  for (int i = 0; i < 10; ++i) EXPECT_TRUE(budget.admits(100, kHourNs));
  EXPECT_FALSE(budget.admits(100, kHourNs));
  EXPECT_FALSE(budget.admits(1, kHourNs));
  EXPECT_TRUE(budget.admits(100, kHourNs + kHourNs / 10));
  EXPECT_FALSE(budget.admits(100, kHourNs + kHourNs / 10));
}

TEST(WriteBudgetTest, AnObjectAboveTheBucketPassesAndIsPaidOff) {
  WriteBudget budget(24'000);
  EXPECT_TRUE(budget.admits(5'000, kHourNs));
  EXPECT_FALSE(budget.admits(1, 5 * kHourNs));
  EXPECT_TRUE(budget.admits(1, 5 * kHourNs + kHourNs / 10));
}

TEST(WriteBudgetTest, IdleDaysAreNotSaved) {
  WriteBudget budget(24'000);
  EXPECT_TRUE(budget.admits(1'000, kHourNs));
  EXPECT_TRUE(budget.admits(1'000, 100 * kHourNs));
  EXPECT_FALSE(budget.admits(1, 100 * kHourNs));
}

TEST(WriteBudgetTest, AClockThatStandsOrGoesBackFillsNothing) {
  WriteBudget budget(24'000);
  EXPECT_TRUE(budget.admits(1'000, 10 * kHourNs));
  EXPECT_FALSE(budget.admits(1, 9 * kHourNs));
  EXPECT_FALSE(budget.admits(1, 10 * kHourNs));
}

RC_GTEST_PROP(WriteBudgetTest, NoTimeHasMoreThanItsShareAnHourAndOneObject, ()) {
  constexpr std::uint64_t kMost = 3'000;
  WriteBudget budget(24'000);
  std::uint64_t now_ns = kHourNs, admitted = 0;
  for (int i = 0; i < 300; ++i) {
    now_ns += *rc::gen::inRange<std::uint64_t>(0, 2 * kHourNs);
    const auto bytes = *rc::gen::inRange<std::uint64_t>(1, kMost + 1);
    if (budget.admits(bytes, now_ns)) admitted += bytes;
    const std::uint64_t share = (now_ns - kHourNs) / (kHourNs / 1'000);
    RC_ASSERT(admitted <= share + 1 + 1'000 + kMost);  // 1: the share is rounded down
  }
}

}  // namespace
}  // namespace cachalot::storage
