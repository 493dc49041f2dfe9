#include "slot_choice.h"

#include <gtest/gtest.h>

#include <numeric>
#include <vector>

namespace cachalot::llama {
namespace {

constexpr std::size_t kBlock = 4;

std::vector<Token> count(std::size_t tokens, Token from = 0) {
  std::vector<Token> sequence(tokens);
  std::iota(sequence.begin(), sequence.end(), from);
  return sequence;
}

TEST(ReusableTokens, AreWholeBlocks) {
  EXPECT_EQ(reusable_tokens(count(8), count(20), kBlock), 8u);
  EXPECT_EQ(reusable_tokens(count(7), count(20), kBlock), 4u);
  EXPECT_EQ(reusable_tokens(count(3), count(20), kBlock), 0u);
}

TEST(ReusableTokens, EndWhereTheTokensDiffer) {
  std::vector<Token> prompt = count(20);
  prompt[9] = 77;
  EXPECT_EQ(reusable_tokens(count(20), prompt, kBlock), 8u);
}

TEST(ReusableTokens, LeaveTheLastTokenToBeComputed) {
  EXPECT_EQ(reusable_tokens(count(8), count(8), kBlock), 4u);
  EXPECT_EQ(reusable_tokens(count(8), count(9), kBlock), 8u);
  EXPECT_EQ(reusable_tokens(count(8), count(0), kBlock), 0u);
  EXPECT_EQ(reusable_tokens(count(0), count(8), kBlock), 0u);
}

TEST(SlotChoice, TakesTheSlotThatSparesMost) {
  const auto longer = count(12), shorter = count(4), prompt = count(20);
  const SlotState slots[] = {{false, 1, shorter}, {false, 9, longer}, {false, 0, {}}};
  EXPECT_EQ(choose_slot(slots, prompt, kBlock), 1u);
}

TEST(SlotChoice, TakesTheSlotThatWasIdleLongestWhereNoneSparesMore) {
  const auto other = count(12, 100), prompt = count(20);
  const SlotState slots[] = {{false, 5, other}, {false, 3, other}, {false, 4, {}}};
  EXPECT_EQ(choose_slot(slots, prompt, kBlock), 1u);
}

TEST(SlotChoice, LeavesBusySlotsAlone) {
  const auto cached = count(12), prompt = count(20);
  const SlotState one_free[] = {{true, 1, cached}, {false, 2, {}}};
  EXPECT_EQ(choose_slot(one_free, prompt, kBlock), 1u);
  const SlotState none_free[] = {{true, 1, cached}, {true, 2, cached}};
  EXPECT_EQ(choose_slot(none_free, prompt, kBlock), std::nullopt);
}

}  // namespace
}  // namespace cachalot::llama
