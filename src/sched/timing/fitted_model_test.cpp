#include "sched/timing/fitted_model.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <string>

#include "sched/timing/least_squares.h"

namespace cachalot::sched {
namespace {

FitValues usual_values() {
  FitValues values;
  for (std::size_t i = 0; i < kFitCoefficients; ++i) values[i] = fit_coefficients()[i].usual;
  return values;
}

GpuSpec h100() {
  return *find_gpu("h100_sxm");
}
ServedModel qwen() {
  return *find_served_model("Qwen3-32B");
}

Result<FittedModel> make(const FitValues& values, double tensor_parallel) {
  return FittedModel::make(values, h100(), qwen(), Precision::kBf16, tensor_parallel);
}

std::vector<MeasuredRow> rows_of(const FitValues& values) {
  std::vector<MeasuredRow> rows;
  for (const double tp : {2.0, 4.0, 8.0}) {
    for (const double input : {1024.0, 4096.0}) {
      for (const double output : {128.0, 1024.0}) {
        for (const double concurrency : {8.0, 16.0, 32.0, 48.0}) {
          const FittedModel::Prediction said =
              make(values, tp)->predict(input, output, concurrency);
          rows.push_back({tp, input, output, concurrency, said.ttft_s, said.tpot_s});
        }
      }
    }
  }
  return rows;
}

TEST(LeastSquares, FindsTheCurveThatMadeThePoints) {
  // y = a * exp(b * x), a 3, b -0.5.
  const Residuals residuals = [](std::span<const double> p, std::vector<double>& out) {
    out.clear();
    for (int x = 0; x < 8; ++x) out.push_back(p[0] * std::exp(p[1] * x) - 3 * std::exp(-0.5 * x));
  };
  const std::vector<double> found = minimize_squares(residuals, std::vector<double>{1, 0});
  EXPECT_NEAR(found[0], 3, 1e-4);
  EXPECT_NEAR(found[1], -0.5, 1e-4);
}

TEST(FittedModel, FitsRowsThatItsOwnFormulasMade) {
  FitValues values = usual_values();
  values[0] *= 1.2;   // read_weights
  values[2] *= 0.85;  // compute
  values[8] *= 1.5;   // ahead_load
  const FitValues fitted = fit_rows(rows_of(values), h100(), qwen(), Precision::kBf16);
  // On a point of a kind that no row has.
  const FittedModel::Prediction wanted = make(values, 4)->predict(2048, 512, 40);
  const FittedModel::Prediction said = make(fitted, 4)->predict(2048, 512, 40);
  EXPECT_NEAR(said.ttft_s / wanted.ttft_s, 1, 0.03);
  EXPECT_NEAR(said.tpot_s / wanted.tpot_s, 1, 0.02);
}

TEST(FittedModel, WithoutRowsTheCoefficientsStayUsual) {
  const FitValues fitted = fit_rows({}, h100(), qwen(), Precision::kBf16);
  for (std::size_t i = 0; i < kFitCoefficients; ++i)
    EXPECT_NEAR(fitted[i] / fit_coefficients()[i].usual, 1, 1e-6);
}

TEST(FittedModel, MoreLoadAndMoreTokensTakeLonger) {
  const Result<FittedModel> model = make(usual_values(), 2);
  ASSERT_TRUE(model.ok());
  const FittedModel::Prediction base = model->predict(1024, 512, 16);
  EXPECT_GT(model->predict(1024, 512, 32).tpot_s, base.tpot_s);
  EXPECT_GT(model->predict(1024, 512, 32).ttft_s, base.ttft_s);
  EXPECT_GT(model->predict(4096, 512, 16).ttft_s, base.ttft_s);
  EXPECT_GT(model->step_seconds({}, {.sequences = 8, .context_tokens = 9000}),
            model->step_seconds({}, {.sequences = 8, .context_tokens = 8000}));
  EXPECT_GT(model->prefill_seconds(4096, 0), model->prefill_seconds(4096, 2048));
  EXPECT_DOUBLE_EQ(model->prefill_seconds(4096, 4096), 0);
}

TEST(FittedModel, RequestsThatTheKvCannotHoldWaitForOthers) {
  const Result<FittedModel> model = make(usual_values(), 2);
  ASSERT_TRUE(model.ok());
  // 64 layers * 8 heads * 128 * 2 numbers * 2 bytes: 262,144 bytes a token, half on each GPU. 0.9 of 85.5 GB less
  // 4 GB and 33 GB of weights hold about 305,000 tokens: 64 requests of 4,096 fit, 512 do not.
  EXPECT_LT(model->predict(4096, 128, 64).ttft_s, 5);
  EXPECT_GT(model->predict(4096, 128, 512).ttft_s, 30);
  // Those that run are as many as fit: TPOT stays.
  EXPECT_DOUBLE_EQ(model->predict(4096, 128, 512).tpot_s, model->predict(4096, 128, 256).tpot_s);
}

TEST(FittedModel, ACoefficientThatIsNotAboveZeroIsNamed) {
  FitValues values = usual_values();
  values[5] = 0;
  const Result<FittedModel> refused = make(values, 2);
  ASSERT_FALSE(refused.ok());
  EXPECT_STREQ(refused.error().message, "step_s is 0, expected a number from 1e-15 to 1000000");
  values[5] = std::numeric_limits<double>::quiet_NaN();
  EXPECT_FALSE(make(values, 2).ok());
  EXPECT_FALSE(make(usual_values(), 0).ok());
  EXPECT_FALSE(
      FittedModel::make(usual_values(), *find_gpu("A100_SXM"), qwen(), Precision::kFp8, 1).ok());
  EXPECT_FALSE(parse_precision("fp4").ok());
}

}  // namespace
}  // namespace cachalot::sched
