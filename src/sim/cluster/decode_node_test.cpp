#include "sim/cluster/decode_node.h"

#include <gtest/gtest.h>

#include <vector>

#include "sched/policy/test_timing.h"

namespace cachalot::sim {
namespace {

TEST(DecodeNode, EverySequenceGetsATokenAStepAndANewOneJoinsBetweenSteps) {
  const sched::TestTiming timing;  // a step: 1 s a sequence, 1 ms a token of context
  DecodeNode node(timing, 10'000, 8);
  TokenGaps gaps;
  std::vector<std::uint32_t> ended;
  ASSERT_TRUE(node.reserve(1002));
  node.enter({.job = 1, .context_tokens = 1000, .tokens_left = 2, .last_token_s = -1}, 0);
  EXPECT_DOUBLE_EQ(node.next_s(), 2);  // 1 + 1000 ms
  ASSERT_TRUE(node.reserve(2001));
  node.enter({.job = 2, .context_tokens = 2000, .tokens_left = 1, .last_token_s = 0.5}, 1);
  EXPECT_EQ(node.running(), 1u);
  node.step(gaps, ended);
  EXPECT_TRUE(ended.empty());
  EXPECT_DOUBLE_EQ(node.next_s(), 2 + 2 + 3.001);  // two sequences, 1001 + 2000 tokens
  node.step(gaps, ended);
  EXPECT_EQ(ended, (std::vector<std::uint32_t>{1, 2}));
  EXPECT_EQ(node.next_s(), kNever);
  EXPECT_EQ(node.reserved_tokens(), 0u);
  EXPECT_EQ(node.context_tokens(), 0u);
  // 2 - (-1), 5.001 and 7.001 - 0.5.
  EXPECT_EQ(gaps.ns.count(), 3u);
  EXPECT_DOUBLE_EQ(gaps.sum_s, 3 + 5.001 + 6.501);
}

TEST(DecodeNode, NeverReservesMoreThanItsCapacityOrItsSequences) {
  const sched::TestTiming timing;
  DecodeNode node(timing, 100, 2);
  EXPECT_FALSE(node.reserve(101));
  EXPECT_TRUE(node.reserve(60));
  EXPECT_FALSE(node.reserve(41));
  EXPECT_TRUE(node.reserve(40));
  EXPECT_FALSE(node.reserve(0));
  EXPECT_EQ(node.most_reserved_tokens(), 100u);
}

}  // namespace
}  // namespace cachalot::sim
