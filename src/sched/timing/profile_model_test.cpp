#include "sched/timing/profile_model.h"

#include <gtest/gtest.h>

#include <string>

#include "sched/timing/small_profile.h"

namespace cachalot::sched {
namespace {

Result<ProfileModel> make(const ProfileTables& tables) {
  return ProfileModel::make(tables, small_model(), small_gpu(),
                            {.largest_graph_tokens = 64, .chunk_tokens = 100});
}

TEST(ProfileModel, ADecodeStepAddsUpItsOperators) {
  const Result<ProfileModel> model = make(small_profile());
  ASSERT_TRUE(model.ok()) << model.error().message;
  // 8 tokens: 10 layers * (7 * 8 + attention 8 * 500 / 100) + 2 * 8 + 2 * 8 = 10 * 96 + 32 us.
  EXPECT_NEAR(model->step_seconds({}, {.sequences = 8, .context_tokens = 4000}), 992e-6, 1e-12);
}

TEST(ProfileModel, TokensOfADecodeStepArePaddedToTheNextGraph) {
  const Result<ProfileModel> model = make(small_profile());
  ASSERT_TRUE(model.ok());
  // 5 sequences run as 8 tokens: 10 * (7 * 8 + 5 * 100 / 100) + 2 * 8; the head only computes 5: + 2 * 5.
  EXPECT_NEAR(model->step_seconds({}, {.sequences = 5, .context_tokens = 500}), 636e-6, 1e-12);
  // 65 are more than the largest graph has.
  EXPECT_NEAR(model->step_seconds({}, {.sequences = 65, .context_tokens = 6500}),
              (10 * (7 * 65 + 65) + 4 * 65) * 1e-6, 1e-12);
}

TEST(ProfileModel, AStepWithAPromptHasItsOverheadAndNoPadding) {
  const Result<ProfileModel> model = make(small_profile());
  ASSERT_TRUE(model.ok());
  const PrefillPart parts[] = {{.new_tokens = 20}, {.new_tokens = 50}};
  // 75 tokens, 7 sequences; attention: 2 * 50 + 5 * 100 / 100 beside the decodes, 2 * 20 alone.
  EXPECT_NEAR(model->step_seconds(parts, {.sequences = 5, .context_tokens = 500}),
              (10 * (7 * 75 + 105 + 40) + 2 * 75 + 2 * 7) * 1e-6 + 0.001, 1e-12);
}

TEST(ProfileModel, PrefillGoesInChunksAndSkipsTheHit) {
  const Result<ProfileModel> model = make(small_profile());
  ASSERT_TRUE(model.ok());
  const PrefillPart first[] = {{.new_tokens = 100, .context_tokens = 50}};
  const PrefillPart second[] = {{.new_tokens = 30, .context_tokens = 150}};
  EXPECT_DOUBLE_EQ(model->prefill_seconds(180, 50),
                   model->step_seconds(first, {}) + model->step_seconds(second, {}));
  EXPECT_DOUBLE_EQ(model->prefill_seconds(180, 180), 0);
}

TEST(ProfileModel, TensorParallelismAddsTwoAllReducesALayer) {
  ProfileTables tables = small_profile();
  tables.tensor_parallel = 2;
  const Result<ProfileModel> two = make(tables);
  const Result<ProfileModel> one = make(small_profile());
  ASSERT_TRUE(two.ok() && one.ok());
  const DecodePart decode = {.sequences = 8, .context_tokens = 800};
  // 8 tokens * 1,000 * 2 bytes, once over a link of 1e10 bytes/s, 1 us latency: 1 + 1.6 us; 20 of them.
  EXPECT_NEAR(two->step_seconds({}, decode) - one->step_seconds({}, decode), 20 * 2.6e-6, 1e-12);
}

TEST(ProfileModel, UnevenContextsCostTheirShareOfTheLongest) {
  ProfileTables tables = small_profile();
  tables.has_skew = true;
  tables.skew.sequences = {{4, 100}, {"few", "many"}};
  tables.skew.skew_rate = {{0.5, 1}, {"one", "all"}};
  tables.skew.longest_context = {{1e9}, {"any"}};
  tables.skew.chunk_context = {{0}, {"none"}};
  tables.skew.alpha[{0, "many", "one", "any", "none"}] = 0.25;
  tables.skew.alpha_default = 0.5;
  const Result<ProfileModel> model = make(tables);
  ASSERT_TRUE(model.ok());
  const DecodePart even = {.sequences = 8, .context_tokens = 1600};
  DecodePart uneven = even;
  uneven.longest_context_tokens = 900;
  uneven.shortest_context_tokens = 100;
  // Mean 200, longest 900: rate (200 - 100) / 800, "one". 8 * 700 / 100 us more if all were 900: a quarter of it.
  EXPECT_NEAR(model->step_seconds({}, uneven) - model->step_seconds({}, even), 10 * 14e-6, 1e-12);
  // Nearly all are as long: no bucket of its own, the default.
  uneven.longest_context_tokens = 210;
  EXPECT_NEAR(model->step_seconds({}, uneven) - model->step_seconds({}, even), 10 * 0.4e-6, 1e-12);
}

TEST(ProfileModel, AnOperatorThatIsMissingIsNamed) {
  ProfileTables tables = small_profile();
  tables.dense.erase("o_proj");
  const Result<ProfileModel> refused = make(tables);
  ASSERT_FALSE(refused.ok());
  EXPECT_STREQ(refused.error().message, "dense: no rows of layer o_proj, which every step needs");
  tables = small_profile();
  tables.per_sequence.clear();
  EXPECT_FALSE(make(tables).ok());
}

TEST(Curve, GoesOnWithTheSlopeOfItsEnd) {
  const Curve curve = {{1, 10}, {100, 20}, {900, 100}, {901, 50}};
  EXPECT_DOUBLE_EQ(value_at(curve, 0), 10);
  EXPECT_DOUBLE_EQ(value_at(curve, 500), 60);
  // The last eighth begins before 900: the slope from 100 on, not that of the last two points.
  EXPECT_DOUBLE_EQ(value_at(curve, 1001), 50 + 100 * 30.0 / 801);
  EXPECT_DOUBLE_EQ(value_at({}, 5), 0);
}

}  // namespace
}  // namespace cachalot::sched
