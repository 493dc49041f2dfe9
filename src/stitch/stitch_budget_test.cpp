#include "stitch/stitch_budget.h"

#include <gtest/gtest.h>

#include <vector>

#include "device_memory/baseline/expandable_allocator.h"
#include "testing/stitch/stitching.h"

namespace cachalot::stitch {
namespace {

constexpr std::uint64_t kMiB = std::uint64_t{1} << 20;
constexpr std::uint64_t kGiB = std::uint64_t{1} << 30;

// Of a program that has stitched so often.
StitchBudget after(int stitches) {
  StitchOptions options;
  options.free_stitch_requests = 10;
  options.growth_divisor = 500;
  options.growth_piece_divisor = 100;
  StitchBudget budget(options);
  for (int i = 0; i < stitches; ++i) budget.served(true);
  return budget;
}

TEST(StitchBudget, AProgramThatHasNotStitchedMayNotBuy) {
  EXPECT_FALSE(after(0).may_buy(2 * kMiB, kGiB));
  EXPECT_TRUE(after(2).may_buy(2 * kMiB, kGiB));
}

TEST(StitchBudget, AStitchIsForgottenInTime) {
  StitchBudget budget = after(1);
  for (int i = 0; i < 9; ++i) budget.served(false);
  EXPECT_EQ(budget.stitches(), 0u);
  EXPECT_FALSE(budget.may_buy(2 * kMiB, kGiB));
}

TEST(StitchBudget, EachStitchAllowsForOneShareMore) {
  StitchBudget budget = after(7);  // each request takes a tenth of one back
  EXPECT_EQ(budget.stitches(), 6u);
  const std::uint64_t share = kGiB / 500;
  EXPECT_TRUE(budget.may_buy(share, kGiB));
  budget.bought(6 * share - 2 * kMiB);
  EXPECT_TRUE(budget.may_buy(2 * kMiB, kGiB));
  EXPECT_FALSE(budget.may_buy(2 * kMiB + 1, kGiB));
  budget.released();
  EXPECT_TRUE(budget.may_buy(2 * kMiB + 1, kGiB)) << "what was bought may be gone";
}

TEST(StitchBudget, PiecesAreSmallUntilThereWereManyStitches) {
  const std::uint64_t piece = kGiB / 100;
  EXPECT_TRUE(after(40).may_buy(piece, kGiB));
  EXPECT_FALSE(after(40).may_buy(piece + kMiB, kGiB));
  EXPECT_TRUE(after(223).may_buy(2 * piece - kMiB, kGiB)) << "200 are twice 100";
}

TEST(StitchBudget, NoMoreThanATenthOfTheHeapIsBought) {
  StitchBudget budget = after(1'000);
  budget.bought(kGiB / 10 - 2 * kMiB);
  EXPECT_TRUE(budget.may_buy(2 * kMiB, kGiB));
  EXPECT_FALSE(budget.may_buy(2 * kMiB + 1, kGiB));
}

TEST(StitchBudget, NothingIsBoughtWhereTheDeviceIsFullUntilSomethingIsReleased) {
  StitchBudget budget = after(40);
  budget.device_is_full();
  EXPECT_FALSE(budget.may_buy(2 * kMiB, kGiB));
  budget.released();
  EXPECT_TRUE(budget.may_buy(2 * kMiB, kGiB));
}

TEST(StitchBudget, EveryNumberOfStitchesIsForgottenInTime) {
  EXPECT_EQ(after(80'000).stitches(), 65'536u) << "of 72,000";
}

// A hundred tensors, one of which makes room for another of random length at every step.
struct Outcome {
  std::uint64_t stitches, peak_reserved_bytes, out_of_memory;
};
Outcome run_random_lengths(device_memory::Allocator& allocator) {
  std::uint64_t random = 1;
  const auto below = [&](std::uint64_t bound) {
    random = random * 6'364'136'223'846'793'005 + 1'442'695'040'888'963'407;
    return (random >> 33) % bound;
  };
  std::vector<device_memory::Address> live;
  for (int step = 0; step < 4'000; ++step) {
    if (step >= 100) {
      std::swap(live[below(live.size())], live.back());
      EXPECT_TRUE(allocator.free(live.back()).ok());
      live.pop_back();
    }
    const Result<device_memory::Address> address =
        allocator.allocate(4 * kMiB + below(3'000) * 8'192, 0);
    if (address) live.push_back(*address);
  }
  EXPECT_TRUE(allocator.check().ok());
  const device_memory::AllocatorStats stats = allocator.stats();
  return {stats.stitches, stats.peak_reserved_bytes, stats.out_of_memory};
}

TEST(StitchAllocator, AProgramThatNeverRepeatsBuysWithinTheBudgetAndStaysBelowExpandableSegments) {
  StitchOptions loose;
  loose.free_stitch_requests = 1;
  Stitching without_budget(loose), with_budget;
  const auto backend = *device_memory::ModelBackend::open();
  device_memory::FakeEvents events;
  device_memory::ExpandableAllocator expandable(*backend, events);
  const Outcome without = run_random_lengths(*without_budget.allocator);
  const Outcome with = run_random_lengths(*with_budget.allocator);
  const Outcome baseline = run_random_lengths(expandable);
  EXPECT_LT(with.stitches, without.stitches * 9 / 10);
  EXPECT_GT(with.peak_reserved_bytes, without.peak_reserved_bytes) << "else it shows nothing";
  EXPECT_LE(with.peak_reserved_bytes, baseline.peak_reserved_bytes);
}

TEST(StitchAllocator, WhatIsBoughtIsBounded) {
  StitchOptions loose, dear;
  loose.free_stitch_requests = 1;
  dear.growth_divisor = 100'000;
  dear.growth_piece_divisor = 1;
  Stitching without_budget(loose), with_budget(dear);
  const Outcome without = run_random_lengths(*without_budget.allocator);
  const Outcome with = run_random_lengths(*with_budget.allocator);
  EXPECT_GT(with.peak_reserved_bytes, without.peak_reserved_bytes) << "else it shows nothing";
  // At most 4,000 stitches: 4 %.
  EXPECT_LT(with.peak_reserved_bytes, without.peak_reserved_bytes * 104 / 100);
}

TEST(StitchAllocator, WhereTheDeviceIsFullItStitches) {
  StitchOptions loose;
  loose.free_stitch_requests = 1;
  Stitching without_budget(loose);
  const Outcome without = run_random_lengths(*without_budget.allocator);
  // What was bought has borders of blocks in its chunks, too: a chunk more for each of some blocks.
  const std::uint64_t limit = without.peak_reserved_bytes + 64 * kMiB;
  Stitching with_budget({}, limit);
  const Outcome with = run_random_lengths(*with_budget.allocator);
  EXPECT_EQ(with.out_of_memory, 0u);
  EXPECT_GT(with.peak_reserved_bytes, limit - 8 * kMiB) << "else it shows nothing";
}

}  // namespace
}  // namespace cachalot::stitch
