#include "eviction/structure/density_table.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <algorithm>
#include <tuple>
#include <vector>

namespace cachalot::eviction {
namespace {

constexpr std::uint64_t kOldest = 5000;

TEST(DensityTable, BinsAreTwoToAnOctaveAndCoverAllAges) {
  EXPECT_EQ(DensityTable::bin(0), 0u);
  EXPECT_EQ(DensityTable::bin(1), 1u);
  for (std::uint32_t b = 2; b + 1 < DensityTable::kBins; ++b) {
    const double start = DensityTable::bin_start(b);
    EXPECT_EQ(DensityTable::bin(static_cast<std::uint64_t>(start)), b);
    EXPECT_EQ(DensityTable::bin(static_cast<std::uint64_t>(start) - 1), b - 1);
    EXPECT_TRUE(b < 4 || start == 2 * DensityTable::bin_start(b - 2)) << b;
  }
  EXPECT_EQ(DensityTable::bin(~std::uint64_t{0}), DensityTable::kBins - 1);
}

TEST(DensityTable, KnowsNothingBeforeItLearns) {
  DensityTable table;
  table.count_use(0, 10);
  EXPECT_EQ(table.density(0, 0), 0);
}

TEST(DensityTable, WhatIsUsedSoonerOrMoreSurelyIsDenser) {
  DensityTable table;
  for (int i = 0; i < 100; ++i) {
    table.count_use(0, 10);
    table.count_use(1, 1000);
    table.count_use(2, 10);
    table.count_loss(2, 2000);
  }
  table.learn({}, kOldest);
  EXPECT_GT(table.density(0, 0), table.density(1, 0));
  EXPECT_GT(table.density(0, 0), table.density(2, 0));
  // A class that was last seen used at 10 promises nothing when it is older than that.
  EXPECT_EQ(table.density(0, DensityTable::bin(100)), 0);
  // One that is used at 1,000 promises the more the nearer it comes.
  EXPECT_GT(table.density(1, DensityTable::bin(700)), table.density(1, 0));
}

TEST(DensityTable, WhatIsOldFades) {
  DensityTable table;
  for (int i = 0; i < 20000; ++i) table.count_loss(3, 100);
  for (int round = 0; round < 12; ++round) {
    for (int i = 0; i < 3000; ++i) table.count_use(3, 50);
    table.learn({}, kOldest);
  }
  // Without halving more than a third of the counts would be losses.
  EXPECT_GT(table.density(3, 0), 0.9 / DensityTable::bin_start(DensityTable::bin(50) + 1));
}

// By the definition: every horizon anew, from single samples.
double naive_density(const std::vector<std::tuple<int, std::uint64_t>>& samples,
                     std::uint32_t from) {
  const std::uint32_t last = DensityTable::bin(kOldest);
  const auto count = [&](int what, std::uint32_t bin) {
    return static_cast<double>(std::count_if(samples.begin(), samples.end(), [&](const auto& s) {
      return std::get<0>(s) == what && DensityTable::bin(std::get<1>(s)) == bin;
    }));
  };
  const auto chance = [&](std::uint32_t bin) {
    double at_risk = 0;
    for (std::uint32_t b = bin; b <= last; ++b) at_risk += count(0, b) + count(1, b) + count(2, b);
    at_risk -= (count(1, bin) + count(2, bin)) / 2;
    return at_risk > 0 ? std::min(1.0, count(0, bin) / at_risk) : 0;
  };
  double best = 0;
  for (std::uint32_t horizon = from; horizon <= last; ++horizon) {
    double none_yet = 1, uses = 0, time = 0;
    for (std::uint32_t b = from; b <= horizon; ++b) {
      const double width = DensityTable::bin_start(b + 1) - DensityTable::bin_start(b);
      uses += none_yet * chance(b);
      time += none_yet * width * ((1 - chance(b)) + chance(b) / 2);  // used half way through
      none_yet *= 1 - chance(b);
    }
    best = std::max(best, uses / time);
  }
  return best;
}

RC_GTEST_PROP(DensityTable, IsTheBestRatioOfUsesToTimeOverAllHorizons, ()) {
  const auto samples = *rc::gen::container<std::vector<std::tuple<int, std::uint64_t>>>(
      rc::gen::tuple(rc::gen::inRange(0, 3), rc::gen::inRange<std::uint64_t>(0, kOldest)));
  DensityTable table;
  DensityTable::Counts waiting{};
  for (const auto& [what, age] : samples) {
    if (what == 0) table.count_use(5, age);
    if (what == 1) table.count_loss(5, age);
    if (what == 2) waiting[5][DensityTable::bin(age)] += 1;
  }
  table.learn(waiting, kOldest);
  for (std::uint32_t b = 0; b <= DensityTable::bin(kOldest); ++b) {
    const double expected = naive_density(samples, b);
    RC_ASSERT(table.density(5, b) >= expected * 0.9999 - 1e-9);
    RC_ASSERT(table.density(5, b) <= expected * 1.0001 + 1e-9);
    RC_ASSERT(table.density(4, b) == 0);
  }
}

}  // namespace
}  // namespace cachalot::eviction
