#include "sched/policy/decode_choice.h"

#include <gtest/gtest.h>

#include <vector>

#include "sched/policy/test_timing.h"

namespace cachalot::sched {
namespace {

TEST(DecodeChoice, TakesTheSmallestPredictedTimeBetweenTokens) {
  // With the request: 3 + 3.5 = 6.5; 4 + 1.5 = 5.5; 2 + 4.5 = 6.5.
  const std::vector<DecodeView> views = {{.sequences = 2, .context_tokens = 3000},
                                         {.sequences = 3, .context_tokens = 1000},
                                         {.sequences = 1, .context_tokens = 4000}};
  const DecodeChoice choice = choose_decode(views, TestTiming(), {500, 600});
  EXPECT_EQ(choice.instance, 1u);
  EXPECT_DOUBLE_EQ(choice.tbt_s, 5.5);
  EXPECT_DOUBLE_EQ(choice.present_s, 4);
}

TEST(DecodeChoice, AnInstanceWithRoomIsBeforeAFasterOneWithout) {
  const std::vector<DecodeView> views = {
      {.sequences = 1, .context_tokens = 0, .reserved_tokens = 900, .capacity_tokens = 1000},
      {.sequences = 5, .context_tokens = 0, .reserved_tokens = 400, .capacity_tokens = 1000}};
  EXPECT_EQ(choose_decode(views, TestTiming(), {100, 600}).instance, 1u);
  EXPECT_EQ(choose_decode(views, TestTiming(), {50, 100}).instance, 0u);
}

TEST(DecodeChoice, WhatNoInstanceCanEverHoldHasNone) {
  const std::vector<DecodeView> views = {{.capacity_tokens = 1000},
                                         {.accepts = false, .capacity_tokens = 5000}};
  EXPECT_FALSE(choose_decode(views, TestTiming(), {1000, 1001}).exists());
}

}  // namespace
}  // namespace cachalot::sched
