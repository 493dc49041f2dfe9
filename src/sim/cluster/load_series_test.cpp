#include "sim/cluster/load_series.h"

#include <gtest/gtest.h>

#include <numeric>

namespace cachalot::sim {
namespace {

TEST(LoadSeries, HasTheMeanOfEachWindow) {
  LoadSeries series(10);
  series.add(5, 25, 2);
  EXPECT_EQ(series.means(30), (std::vector<double>{1, 2, 1}));
  EXPECT_EQ(series.means(25), (std::vector<double>{1, 2, 2})) << "the last one is cut";
}

TEST(LoadSeries, HasLongerWindowsForALongerTimeAndKeepsWhatWasAdded) {
  constexpr double kEnd = 1e12;
  LoadSeries busy(1), idle(1);
  busy.add(0, 3, 5);
  busy.add(1000, 2000, 4);
  busy.add(1e9, kEnd, 1);
  const double window_s = LoadSeries::length_for(1, kEnd);
  EXPECT_EQ(window_s, 0x1p26);
  std::vector<double> means = busy.means(kEnd);
  EXPECT_LE(means.size(), LoadSeries::kMostWindows);
  EXPECT_EQ(idle.means(kEnd).size(), means.size());
  EXPECT_DOUBLE_EQ(means[0], 4015 / window_s);
  EXPECT_EQ(means[means.size() - 2], 1);
  const double last_s = kEnd - static_cast<double>(means.size() - 1) * window_s;
  const double whole = std::accumulate(means.begin(), means.end() - 1, 0.0) * window_s;
  EXPECT_NEAR(whole + means.back() * last_s, 4015 + kEnd - 1e9, 1e-3);
}

TEST(LoadSeries, KeepsItsWindowsUntilTheyAreTooMany) {
  EXPECT_EQ(LoadSeries::length_for(60, 60.0 * LoadSeries::kMostWindows), 60);
  EXPECT_EQ(LoadSeries::length_for(60, 60.0 * LoadSeries::kMostWindows + 1), 120);
}

}  // namespace
}  // namespace cachalot::sim
