#include "replay/latency_histogram.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <algorithm>
#include <memory>
#include <vector>

namespace cachalot::replay {
namespace {

RC_GTEST_PROP(LatencyHistogram, GivesPercentilesWithinTwoPercent,
              (std::vector<std::uint64_t> values)) {
  RC_PRE(!values.empty());
  const auto shift = *rc::gen::inRange(0, 64);
  const auto histogram = std::make_unique<LatencyHistogram>();
  for (std::uint64_t& value : values) histogram->record(value >>= shift);
  std::sort(values.begin(), values.end());
  for (const double fraction : {0.0, 0.5, 0.9, 0.99, 1.0}) {
    const auto rank = std::min(
        static_cast<std::size_t>(fraction * static_cast<double>(values.size())), values.size() - 1);
    const auto exact = static_cast<double>(values[rank]);
    RC_ASSERT(std::abs(histogram->percentile_ns(fraction) - exact) <= exact / 50);
  }
}

TEST(LatencyHistogram, OfNothingSaysZero) {
  EXPECT_EQ(LatencyHistogram().percentile_ns(0.5), 0.0);
  EXPECT_EQ(LatencyHistogram().count(), 0u);
}

TEST(LatencyHistogram, IsTheSumOfThoseAddedToIt) {
  LatencyHistogram low, high;
  for (int i = 0; i < 99; ++i) low.record(10);
  high.record(1000);
  low.add(high);
  EXPECT_EQ(low.count(), 100u);
  EXPECT_EQ(low.percentile_ns(0.5), 10.0);
  EXPECT_NEAR(low.percentile_ns(0.99), 1000.0, 20.0);
}

}  // namespace
}  // namespace cachalot::replay
