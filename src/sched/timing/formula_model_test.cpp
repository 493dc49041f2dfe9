#include "sched/timing/formula_model.h"

#include <gtest/gtest.h>

#include <limits>
#include <string>

namespace cachalot::sched {
namespace {

// 10 layers, width 100, a 4, b 22: flops(n) = 10 * (400 n^2 + 220,000 n) = 4,000 n^2 + 2,200,000 n.
FormulaParameters small_model() {
  return {.layers = 10,
          .width = 100,
          .a = 4,
          .b = 22,
          .peak_flops = 1e9,
          .correction = 2,
          .weight_bytes = 5e8,
          .kv_bytes_per_token = 1e5,
          .memory_bytes_per_second = 1e9};
}

TEST(FormulaModel, PrefillCostsTheOperationsOfTheTokensBehindTheHit) {
  const Result<FormulaModel> model = FormulaModel::make(small_model());
  ASSERT_TRUE(model.ok());
  EXPECT_DOUBLE_EQ(model->flops(100), 4000.0 * 10000 + 2200000.0 * 100);
  // 2 * 2.6e8 / 1e9
  EXPECT_DOUBLE_EQ(model->prefill_seconds(100, 0), 0.52);
  // flops(50) = 1e7 + 1.1e8 = 1.2e8: 2 * (2.6e8 - 1.2e8) / 1e9
  EXPECT_DOUBLE_EQ(model->prefill_seconds(100, 50), 0.28);
  EXPECT_DOUBLE_EQ(model->prefill_seconds(100, 100), 0);
  EXPECT_DOUBLE_EQ(model->prefill_seconds(100, 200), 0);
}

TEST(FormulaModel, ChunksOfAPrefillTakeWhatItTakesAlone) {
  const Result<FormulaModel> model = FormulaModel::make(small_model());
  ASSERT_TRUE(model.ok());
  const PrefillPart first[] = {{.new_tokens = 60, .context_tokens = 0}};
  const PrefillPart second[] = {{.new_tokens = 40, .context_tokens = 60}};
  EXPECT_DOUBLE_EQ(model->step_seconds(first, {}) + model->step_seconds(second, {}),
                   model->prefill_seconds(100, 0));
}

TEST(FormulaModel, DecodeReadsTheWeightsOnceAndTheContexts) {
  const Result<FormulaModel> model = FormulaModel::make(small_model());
  ASSERT_TRUE(model.ok());
  // (5e8 + 1e5 * 1,000) / 1e9
  EXPECT_DOUBLE_EQ(model->step_seconds({}, {.sequences = 4, .context_tokens = 1000}), 0.6);
  EXPECT_DOUBLE_EQ(model->step_seconds({}, {}), 0);
}

TEST(FormulaModel, ANumberOutOfRangeIsNamed) {
  FormulaParameters negative = small_model();
  negative.kv_bytes_per_token = -1;
  const Result<FormulaModel> refused = FormulaModel::make(negative);
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.error().code, Code::kInvalidArgument);
  EXPECT_STREQ(refused.error().message, "kv_bytes_per_token is -1, expected a number not below 0");

  FormulaParameters no_flops = small_model();
  no_flops.peak_flops = 0;
  ASSERT_FALSE(FormulaModel::make(no_flops).ok());
  no_flops.peak_flops = std::numeric_limits<double>::quiet_NaN();
  ASSERT_FALSE(FormulaModel::make(no_flops).ok());
}

}  // namespace
}  // namespace cachalot::sched
