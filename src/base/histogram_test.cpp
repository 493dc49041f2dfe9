#include "base/histogram.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <algorithm>
#include <memory>
#include <vector>

namespace cachalot::base {
namespace {

RC_GTEST_PROP(Histogram, GivesPercentilesWithinTwoPercent, (std::vector<std::uint64_t> values)) {
  RC_PRE(!values.empty());
  const auto shift = *rc::gen::inRange(0, 64);
  const auto histogram = std::make_unique<Histogram>();
  for (std::uint64_t& value : values) histogram->record(value >>= shift);
  std::sort(values.begin(), values.end());
  for (const double fraction : {0.0, 0.5, 0.9, 0.99, 1.0}) {
    const auto rank = std::min(
        static_cast<std::size_t>(fraction * static_cast<double>(values.size())), values.size() - 1);
    const auto exact = static_cast<double>(values[rank]);
    RC_ASSERT(std::abs(histogram->percentile(fraction) - exact) <= exact / 50);
  }
}

TEST(Histogram, OfNothingSaysZero) {
  EXPECT_EQ(Histogram().percentile(0.5), 0.0);
  EXPECT_EQ(Histogram().count(), 0u);
}

TEST(Histogram, IsTheSumOfThoseAddedToIt) {
  Histogram low, high;
  for (int i = 0; i < 99; ++i) low.record(10);
  high.record(1000);
  low.add(high);
  EXPECT_EQ(low.count(), 100u);
  EXPECT_EQ(low.percentile(0.5), 10.0);
  EXPECT_NEAR(low.percentile(0.99), 1000.0, 20.0);
}

}  // namespace
}  // namespace cachalot::base
