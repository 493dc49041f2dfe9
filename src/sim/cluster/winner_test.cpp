#include "sim/cluster/winner.h"

#include <gtest/gtest.h>

#include <limits>
#include <vector>

namespace cachalot::sim {
namespace {

constexpr double kNone = std::numeric_limits<double>::quiet_NaN();

TEST(Winner, IsTheSmallestOrTheLargestAndItsMarginIsOverTheSecond) {
  const std::vector<double> figures = {5, 4, 3};
  const auto smallest = winner_of(figures, Better::kSmaller);
  ASSERT_TRUE(smallest);
  EXPECT_EQ(smallest->row, 2u);
  EXPECT_EQ(smallest->second, 1u);
  EXPECT_DOUBLE_EQ(*smallest->margin, 0.25);
  const auto largest = winner_of(figures, Better::kLarger);
  ASSERT_TRUE(largest);
  EXPECT_EQ(largest->row, 0u);
  EXPECT_EQ(largest->second, 1u);
  EXPECT_DOUBLE_EQ(*largest->margin, 0.25);
}

TEST(Winner, OfEqualFiguresIsTheLowerRowInATie) {
  const auto winner = winner_of(std::vector<double>{7, 2, 2}, Better::kSmaller);
  ASSERT_TRUE(winner);
  EXPECT_EQ(winner->row, 1u);
  EXPECT_EQ(winner->second, 2u);
  EXPECT_EQ(winner->margin, 0);
  EXPECT_TRUE(winner->is_tie());
  EXPECT_EQ(winner->equals, 2u);
  EXPECT_TRUE(winner->is_near_tie());
  EXPECT_FALSE(winner_of(std::vector<double>{7, 7, 2}, Better::kSmaller)->is_tie());
}

TEST(Winner, IsNearATieBelowOnePercent) {
  const auto margin = [](double first, double second) {
    return *winner_of(std::vector<double>{first, second}, Better::kSmaller);
  };
  EXPECT_TRUE(margin(99.1, 100).is_near_tie());
  EXPECT_FALSE(margin(98.9, 100).is_near_tie());
}

TEST(Winner, IsNeverARowWithoutAFigure) {
  EXPECT_FALSE(winner_of({}, Better::kLarger));
  EXPECT_FALSE(winner_of(std::vector<double>{kNone, kNone}, Better::kLarger));
  const auto only = winner_of(std::vector<double>{kNone, 3, kNone}, Better::kSmaller);
  ASSERT_TRUE(only);
  EXPECT_EQ(only->row, 1u);
  EXPECT_FALSE(only->second);
  EXPECT_FALSE(only->margin);
  EXPECT_FALSE(only->is_near_tie());
}

TEST(Winner, HasNoMarginOverNothing) {
  const auto winner = winner_of(std::vector<double>{0, 3}, Better::kLarger);
  ASSERT_TRUE(winner);
  EXPECT_EQ(winner->row, 1u);
  EXPECT_EQ(winner->second, 0u);
  EXPECT_FALSE(winner->margin);
  EXPECT_EQ(winner_of(std::vector<double>{0, 0}, Better::kLarger)->margin, 0);
}

}  // namespace
}  // namespace cachalot::sim
