#include "sched/calibration/fitted_file.h"

#include <gtest/gtest.h>

#include <string>

#include "testing/os/scratch_folder.h"

namespace cachalot::sched {
namespace {

constexpr const char* kHeader =
    "gpu,engine,engine_version,model,precision,tp,isl,osl,concurrency,ttft_ms,tpot_ms\n";

class MeasuredRowsTest : public ::testing::Test {
 protected:
  std::string problem_of(const std::string& row) {
    const auto groups = read_measured_rows(folder_.write("r.csv", kHeader + row + "\n"));
    if (groups) return "none";
    const std::string message = groups.error().message;
    return message.substr(message.find("r.csv") + 5);
  }
  os::ScratchFolder folder_;
};

TEST_F(MeasuredRowsTest, AreGroupedByWhatOneModelIsMadeFor) {
  const auto groups = read_measured_rows(
      folder_.write("r.csv", std::string(kHeader) +
                                 "h100_sxm,vllm,0.12.0,Qwen/Qwen3-32B,bf16,2,1024,128,8,154,18\n"
                                 "h200_sxm,vllm,,Qwen/Qwen3-32B,bf16,2,1024,128,8,150,14\n"
                                 "h100_sxm,vllm,0.11,Qwen/Qwen3-32B,bf16,4,1024,128,4,100,12\n"));
  ASSERT_TRUE(groups.ok()) << groups.error().message;
  ASSERT_EQ(groups->size(), 2u);
  EXPECT_EQ((*groups)[0].subject.text(), "h100_sxm, vllm, Qwen/Qwen3-32B, bf16");
  ASSERT_EQ((*groups)[0].rows.size(), 2u);
  EXPECT_DOUBLE_EQ((*groups)[0].rows[1].tensor_parallel, 4);
  EXPECT_DOUBLE_EQ((*groups)[0].rows[0].ttft_s, 0.154);
}

TEST_F(MeasuredRowsTest, ValuesThatCannotBeAreErrors) {
  EXPECT_EQ(problem_of("h100_sxm,vllm,,Qwen/Qwen3-32B,bf16,2,1024,128,8,-1,18"),
            ":2: ttft_ms is -1, expected a number not below 0");
  EXPECT_EQ(problem_of("h100_sxm,vllm,,Qwen/Qwen3-32B,bf16,2,0,128,8,154,18"),
            ":2: isl is 0, expected a number above 0");
  EXPECT_EQ(problem_of("h100_sxm,,,Qwen/Qwen3-32B,bf16,2,1024,128,8,154,18"),
            ":2: engine is empty, expected a name");
  EXPECT_NE(
      problem_of("h100_sxm,vllm,,gpt-9,bf16,2,1024,128,8,154,18").find("model: gpt-9 is unknown"),
      std::string::npos);
  EXPECT_NE(problem_of("x9,vllm,,Qwen/Qwen3-32B,bf16,2,1024,128,8,154,18").find("GPU \"x9\""),
            std::string::npos);
  EXPECT_NE(problem_of("h100_sxm,vllm,,Qwen/Qwen3-32B,fp4,2,1024,128,8,154,18").find("fp4"),
            std::string::npos);
}

std::string coefficients(const char* instead_of_last) {
  std::string text = "{";
  for (std::size_t i = 0; i + 1 < kFitCoefficients; ++i)
    text += std::string("\"") + fit_coefficients()[i].name + "\": 1.5, ";
  return text + instead_of_last + "}";
}

std::string file_of(const std::string& coefficients) {
  return "{\"models\": [{\"gpu\": \"h100_sxm\", \"engine\": \"vllm\", \"model\": "
         "\"Qwen/Qwen3-32B\", \"precision\": \"bf16\", \"coefficients\": " +
         coefficients + ", \"fit\": {}}]}";
}

TEST(FittedFile, IsRead) {
  const os::ScratchFolder folder;
  const auto models =
      read_fitted_file(folder.write("m.json", file_of(coefficients("\"sequence_s\": 2e-5"))));
  ASSERT_TRUE(models.ok()) << models.error().message;
  ASSERT_EQ(models->size(), 1u);
  EXPECT_DOUBLE_EQ((*models)[0].values[0], 1.5);
  EXPECT_DOUBLE_EQ((*models)[0].values[kFitCoefficients - 1], 2e-5);
}

TEST(FittedFile, WhatIsWrongIsNamed) {
  const os::ScratchFolder folder;
  const auto problem = [&](const std::string& text) {
    const auto models = read_fitted_file(folder.write("m.json", text));
    if (models) return std::string("none");
    const std::string message = models.error().message;
    return message.substr(message.find("m.json") + 8);
  };
  EXPECT_EQ(problem(file_of(coefficients("\"sequence\": 1"))), "unknown coefficient \"sequence\"");
  EXPECT_EQ(problem(file_of(coefficients("\"sequence_s\": -1"))),
            "coefficient \"sequence_s\" is -1, expected a number from 1e-15 to 1000000");
  for (const char* const value : {"1e308", "1e-300", "0", "\"2\"", "null"}) {
    EXPECT_EQ(problem(file_of(coefficients((std::string("\"sequence_s\": ") + value).c_str())))
                  .find("coefficient \"sequence_s\" is "),
              0u)
        << value;
  }
  EXPECT_EQ(problem(file_of("{}")), "missing: coefficient \"read_weights\"");
  EXPECT_EQ(problem("{\"models\": [{\"gpus\": 1}]}"), "unknown key \"gpus\"");
  EXPECT_EQ(problem("{\"models\": [{}]}"), "missing: key \"gpu\"");
  EXPECT_EQ(problem("[]"), "expected an array: key \"models\"");
  EXPECT_NE(problem("{").find("not valid JSON"), std::string::npos);
}

TEST(FitReport, CountsRowsOfEnoughConcurrencyOnly) {
  MeasuredGroup group = {{"h100_sxm", "vllm", "Qwen/Qwen3-32B", "bf16"}, {}};
  FitValues values;
  for (std::size_t i = 0; i < kFitCoefficients; ++i) values[i] = fit_coefficients()[i].usual;
  const auto model = FittedModel::make(values, *find_gpu("h100_sxm"),
                                       *find_served_model("Qwen/Qwen3-32B"), Precision::kBf16, 2);
  ASSERT_TRUE(model.ok());
  for (const double concurrency : {4.0, 8.0, 16.0}) {
    const auto said = model->predict(1024, 128, concurrency);
    // 25 % above, and 50 % below what the model says; far off where concurrency is below 8.
    const double factor = concurrency < 8 ? 100 : 1;
    group.rows.push_back(
        {2, 1024, 128, concurrency, factor * said.ttft_s / 1.25, factor * said.tpot_s / 0.5});
  }
  const MeasuredGroup groups[] = {group};
  const FittedEntry entries[] = {{group.subject, values}};
  const auto report = check_groups(groups, entries);
  ASSERT_TRUE(report.ok());
  EXPECT_EQ(report->all.rows, 2u);
  EXPECT_NEAR(report->all.ttft_median, 0.25, 1e-9);
  EXPECT_NEAR(report->groups[0].tpot_p90, 0.5, 1e-9);

  const auto none = check_groups(groups, {});
  ASSERT_FALSE(none.ok());
  EXPECT_STREQ(none.error().message, "no fitted model of h100_sxm, vllm, Qwen/Qwen3-32B, bf16");
}

}  // namespace
}  // namespace cachalot::sched
