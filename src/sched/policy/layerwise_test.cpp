#include "sched/policy/layerwise.h"

#include <gtest/gtest.h>

namespace cachalot::sched {
namespace {

using Plan = std::vector<std::uint64_t>;

// 10 layers, of which 2 stay; 100 bytes/s.
LayerwiseOptions options_of(LayerwiseKind kind) {
  return {.kind = kind, .layers = 10, .staging_layers = 2, .host_bytes_per_s = 100};
}

TEST(Layerwise, AsManyLayersStayAsComputingDoesNotHide) {
  const LayerwiseOptions options = options_of(LayerwiseKind::kOn);
  // 1,000 bytes: a layer has 100 and takes 1 s. In 4.5 s 4 layers are copied: 6 stay.
  EXPECT_EQ(fewest_device_layers(options, 4.5, 1000), 6u);
  EXPECT_EQ(fewest_device_layers(options, 0, 1000), 10u);
  // All 10 could be copied in 10 s: the staging layers stay all the same.
  EXPECT_EQ(fewest_device_layers(options, 10, 1000), 2u);
  EXPECT_EQ(fewest_device_layers(options, 1e9, 1000), 2u);
  // A model of one layer has no other that could be copied meanwhile.
  EXPECT_EQ(fewest_device_layers({.layers = 1, .host_bytes_per_s = 100}, 100, 1000), 1u);
}

TEST(Layerwise, SlackIsTheGoalForAllTokensLessTheTimeTheyTake) {
  // 10 tokens in 0.8 s, 20 to come of 0.05 s each; goal 0.1 s: 0.1 * 30 - (0.8 + 20 * 0.05) = 1.2 s.
  EXPECT_DOUBLE_EQ(prefill_slack_s({10, 0.8, 20}, 0.05, 0.1), 1.2);
  // Nothing is known of the rest: 0.1 * 10 - 0.8 = 0.2 s.
  EXPECT_DOUBLE_EQ(prefill_slack_s({10, 0.8, 0}, 0.05, 0.1), 1.0 - 0.8);
  // Steps take longer than the goal: 0.1 * 30 - (0.8 + 20 * 0.2) = -1.8 s.
  EXPECT_DOUBLE_EQ(prefill_slack_s({10, 0.8, 20}, 0.2, 0.1), -1.8);
}

TEST(Layerwise, OnKeepsTheFewestLayersOfEachPromptThatFits) {
  // 5 s for 1,000 bytes: 5 of 10 layers stay. 20 blocks: 10 on the device. 25 are free: two prompts.
  const WaitingPrompt prompts[] = {{5, 1000, 20}, {5, 1000, 20}, {5, 1000, 20}};
  LayerwiseView view;
  view.waiting = prompts;
  view.free_blocks = 25;
  EXPECT_EQ(plan_prefills(options_of(LayerwiseKind::kOn), view), (Plan{5, 5}));
  view.free_blocks = 9;
  EXPECT_EQ(plan_prefills(options_of(LayerwiseKind::kOn), view), Plan{});
}

TEST(Layerwise, AutoKeepsAllLayersWhereAllThatWaitFit) {
  const WaitingPrompt prompts[] = {{5, 1000, 20}, {5, 1000, 20}};
  LayerwiseView view;
  view.waiting = prompts;
  view.free_blocks = 40;
  EXPECT_EQ(plan_prefills(options_of(LayerwiseKind::kAuto), view), (Plan{10, 10}));
  // 30 of 40: 7 of 10 layers of the first, 14 blocks; 16 of 20 are left for the second: 8 layers.
  view.free_blocks = 30;
  EXPECT_EQ(plan_prefills(options_of(LayerwiseKind::kAuto), view), (Plan{7, 8}));
  // 12 of 40: 3 layers would fit, but 5 must stay: 10 blocks. Then 2 blocks are too few for the second.
  view.free_blocks = 12;
  EXPECT_EQ(plan_prefills(options_of(LayerwiseKind::kAuto), view), Plan{5});
}

TEST(Layerwise, TheHostsMemoryIsAFurtherLimit) {
  // 20 blocks, of which the host takes 4: 16 of 20 stay, 8 layers, where 5 would do. For the second it has none left.
  const WaitingPrompt prompts[] = {{5, 1000, 20}, {5, 1000, 20}};
  LayerwiseView view;
  view.waiting = prompts;
  view.free_blocks = 40;
  view.free_host_blocks = 4;
  EXPECT_EQ(plan_prefills(options_of(LayerwiseKind::kOn), view), (Plan{8, 10}));
}

TEST(Layerwise, PromptsBeginWhileAllThatDecodeReachTheirGoal) {
  // Slacks with a goal of 0.1 s and steps of 0.05 s: 0.1 * 100 - (0 + 100 * 0.05) = 5 s, and 0.1 * 110 - (2 + 5) = 4 s.
  const DecodeProgress decoding[] = {{0, 0, 100}, {10, 2, 100}};
  const WaitingPrompt prompts[] = {{2, 100, 1}, {1, 100, 1}, {1.5, 100, 1}};
  LayerwiseOptions options = options_of(LayerwiseKind::kOn);
  options.tbt_slo_s = 0.1;
  LayerwiseView view;
  view.decoding = decoding;
  view.step_s = 0.05;
  view.waiting = prompts;
  view.free_blocks = 100;
  EXPECT_EQ(plan_prefills(options, view).size(), 2u);  // 2 + 1 <= 4 < 4.5
  view.pending_prefill_s = 1.5;
  EXPECT_EQ(plan_prefills(options, view).size(), 1u);  // 3.5 <= 4 < 4.5
  view.decoding = {};
  EXPECT_EQ(plan_prefills(options, view).size(), 3u);
  // 0.1 * 20 - (8 + 10 * 0.05) = -6.5 s: it is late whatever begins, and delays no prompt.
  const DecodeProgress late[] = {{10, 8, 10}};
  view.decoding = late;
  EXPECT_EQ(plan_prefills(options, view).size(), 3u);
  // But if it is late because its KV is in the host's memory, it goes before prompts.
  const DecodeProgress hosted[] = {{10, 8, 10, true}};
  view.decoding = hosted;
  EXPECT_TRUE(plan_prefills(options, view).empty());
}

TEST(Layerwise, WithoutAGoalKvGoesToTheHostAsFarAsLoadingHides) {
  // Steps of 5 s load 500 bytes, of which 200 are there: 300 are 6 blocks of 50. So 14 of 20 stay, 7 of 10 layers; the
  // second has 6 - 6 = 0 blocks of the host left.
  const WaitingPrompt prompts[] = {{5, 1000, 20}, {5, 1000, 20}};
  LayerwiseView view;
  view.step_s = 5;
  view.loaded_bytes = 200;
  view.waiting = prompts;
  view.free_blocks = 40;
  EXPECT_EQ(plan_prefills(options_of(LayerwiseKind::kOn), view), (Plan{7, 10}));
  LayerwiseOptions options = options_of(LayerwiseKind::kOn);
  options.tbt_slo_s = 1000;
  EXPECT_EQ(plan_prefills(options, view), (Plan{5, 5}));
}

TEST(Layerwise, LoadsHideBehindComputingAndUrgentOnesMayTakeTheGoal) {
  // 100 bytes/s, 1 s of computing: the first takes 0.6 s of it; the second, 0.6 s, does not fit; the third does, 0.3 s.
  const HostSequence sequences[] = {{60, 99}, {60, 99}, {30, 99}};
  LayerwiseOptions options = options_of(LayerwiseKind::kOn);
  EXPECT_EQ(choose_loads(options, sequences, 1), (std::vector<bool>{true, false, true}));
  // With slack for less than 8 steps they may extend the step to the goal of 1.3 s: 0.6 + 0.6 fits, 0.3 more does not.
  options.tbt_slo_s = 1.3;
  const HostSequence urgent[] = {{60, 1}, {60, 1}, {30, 1}};
  EXPECT_EQ(choose_loads(options, urgent, 1), (std::vector<bool>{true, true, false}));
  // What is late already, or has time, may not.
  const HostSequence mixed[] = {{60, -1}, {60, -1}, {60, 99}};
  EXPECT_EQ(choose_loads(options, mixed, 1), (std::vector<bool>{true, false, false}));
  // Nothing else is computed: one goes on, whatever it takes.
  options.tbt_slo_s = 0.1;
  EXPECT_EQ(choose_loads(options, sequences, 0), (std::vector<bool>{true, false, false}));
}

TEST(Layerwise, DecodesMakeRoomAsFarAsLoadingHidesOrKeepsTheGoal) {
  LayerwiseOptions options = options_of(LayerwiseKind::kAuto);
  // 100 bytes/s and steps of 2 s: 200 bytes, of which 150 are there.
  EXPECT_DOUBLE_EQ(offload_room_bytes(options, 2, 150), 50);
  EXPECT_DOUBLE_EQ(offload_room_bytes(options, 2, 250), 0);
  options.tbt_slo_s = 3;  // 300 bytes
  EXPECT_DOUBLE_EQ(offload_room_bytes(options, 2, 150), 150);
}

TEST(Layerwise, NamesAreReadAndUnknownOnesRefused) {
  EXPECT_EQ(*parse_layerwise("off"), LayerwiseKind::kOff);
  EXPECT_EQ(*parse_layerwise("swap"), LayerwiseKind::kSwap);
  EXPECT_EQ(*parse_layerwise("on"), LayerwiseKind::kOn);
  EXPECT_EQ(*parse_layerwise("auto"), LayerwiseKind::kAuto);
  EXPECT_STREQ(parse_layerwise("yes").error().message,
               "no layer-wise KV \"yes\", expected one of: off, swap, on, auto");
}

}  // namespace
}  // namespace cachalot::sched
