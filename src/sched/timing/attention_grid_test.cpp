#include "sched/timing/attention_grid.h"

#include <gtest/gtest.h>

#include <string>

namespace cachalot::sched {
namespace {

// Decode alone: 10 us a sequence and 1 us for 100 tokens of each context.
// Chunks of 16 and 64, whose contexts and decodes are other ones: no box.
std::vector<AttentionPoint> points() {
  std::vector<AttentionPoint> all;
  for (const double sequences : {1.0, 2.0, 4.0}) {
    for (const double context : {100.0, 200.0})
      all.push_back({0, 0, sequences, context, 10 * sequences + context / 100});
  }
  for (const double context : {0.0, 100.0}) {
    all.push_back({16, context, 0, 0, 16 + context});
    all.push_back({16, context, 2, 100, 20 + context});
    all.push_back({16, context, 2, 200, 30 + context});
  }
  all.push_back({64, 0, 0, 0, 64});
  all.push_back({64, 50, 0, 0, 164});
  all.push_back({64, 0, 4, 100, 104});
  all.push_back({64, 50, 4, 100, 204});
  return all;
}

TEST(AttentionGrid, MeasuredPointsAreExact) {
  const Result<AttentionGrid> grid = AttentionGrid::make(points());
  ASSERT_TRUE(grid.ok()) << grid.error().message;
  EXPECT_DOUBLE_EQ(grid->decode_us(2, 200), 22);
  EXPECT_DOUBLE_EQ(grid->mixed_us(16, 100, 2, 200), 130);
  EXPECT_DOUBLE_EQ(grid->mixed_us(64, 50, 0, 0), 164);
}

TEST(AttentionGrid, BetweenPointsItIsLinearOnEachAxis) {
  const Result<AttentionGrid> grid = AttentionGrid::make(points());
  ASSERT_TRUE(grid.ok());
  // Three sequences are half way between 2 and 4, context 150 between 100 and 200: 30 + 1.5.
  EXPECT_DOUBLE_EQ(grid->decode_us(3, 150), 31.5);
  // Chunk 40 is half way between 16 and 64. At 16: context 25 -> 16 + 25. At 64: context 25 -> 64 + 50.
  EXPECT_DOUBLE_EQ(grid->mixed_us(40, 25, 0, 0), (41 + 114) / 2.0);
}

TEST(AttentionGrid, BehindTheLastPointItGoesOnLinearlyAndBeforeTheFirstItStays) {
  const Result<AttentionGrid> grid = AttentionGrid::make(points());
  ASSERT_TRUE(grid.ok());
  EXPECT_DOUBLE_EQ(grid->decode_us(8, 400), 80 + 4);
  EXPECT_DOUBLE_EQ(grid->decode_us(1, 1), 11);
  EXPECT_DOUBLE_EQ(grid->mixed_us(1, 0, 0, 0), 16);
}

TEST(AttentionGrid, NothingTakesNoTime) {
  const Result<AttentionGrid> grid = AttentionGrid::make(points());
  ASSERT_TRUE(grid.ok());
  EXPECT_DOUBLE_EQ(grid->decode_us(0, 0), 0);
  EXPECT_DOUBLE_EQ(grid->mixed_us(0, 0, 2, 200), grid->decode_us(2, 200));
}

TEST(AttentionGrid, PointsThatAreMissingOrTwiceAreErrors) {
  std::vector<AttentionPoint> twice = points();
  twice.push_back({0, 0, 2, 200, 7});
  const Result<AttentionGrid> refused = AttentionGrid::make(twice);
  ASSERT_FALSE(refused.ok());
  EXPECT_STREQ(refused.error().message, "attention: the point 0,0,2,200 is there twice");

  const std::vector<AttentionPoint> all = points();
  EXPECT_FALSE(AttentionGrid::make(std::span(all).first(6)).ok());
  EXPECT_FALSE(AttentionGrid::make(std::span(all).subspan(6)).ok());
  EXPECT_FALSE(AttentionGrid::make({}).ok());
}

}  // namespace
}  // namespace cachalot::sched
