#include <gtest/gtest.h>

#include <string>
#include <utility>

#include "geometry/presets.h"
#include "sched/timing/gpu_spec.h"
#include "sched/timing/kv_capacity.h"
#include "sched/timing/quantiles.h"
#include "sched/timing/served_model.h"

namespace cachalot::sched {
namespace {

TEST(ServedModel, HasTheWeightsThatItsNameSays) {
  const Result<ServedModel> model = find_served_model("meta-llama/Llama-3.1-8B-Instruct");
  ASSERT_TRUE(model.ok());
  // Published: 8.03 billion with embedding and head.
  EXPECT_NEAR(model->layer_weights() + 2 * model->vocabulary_weights(), 8.03e9, 0.01e9);
  // 32 layers, 8 KV heads of 128, K and V: 128 KiB in bf16.
  EXPECT_DOUBLE_EQ(2 * model->kv_numbers_per_token(), 131072);
  EXPECT_TRUE(find_served_model("qwen3-32b").ok());
}

// Published sizes in billions of weights, with embedding and head, which tied models share.
TEST(ServedModel, WeightsAreThePublishedOnes) {
  const std::pair<const char*, double> published[] = {
      {"Llama-2-7B", 6.74},      {"Llama-2-13B", 13.02},   {"Llama-3-8B", 8.03},
      {"Llama-3-70B", 70.55},    {"Llama-3.1-8B", 8.03},   {"Llama-3.1-70B", 70.55},
      {"Llama-3.1-405B", 405.9}, {"Llama-3.3-70B", 70.55}, {"Qwen2.5-7B", 7.62},
      {"Qwen2.5-14B", 14.77},    {"Qwen2.5-32B", 32.76},   {"Qwen2.5-72B", 72.71},
      {"Qwen3-8B", 8.19},        {"Qwen3-14B", 14.77},     {"Qwen3-32B", 32.76},
      {"Mistral-7B", 7.25}};
  for (const auto& [name, billions] : published) {
    const Result<ServedModel> model = find_served_model(name);
    ASSERT_TRUE(model.ok()) << name;
    const double weights = model->layer_weights() + 2 * model->vocabulary_weights();
    EXPECT_NEAR(weights / 1e9, billions, 0.004 * billions) << name;
  }
  const std::pair<const char*, double> tied[] = {
      {"Llama-3.2-1B", 1.24}, {"Llama-3.2-3B", 3.21}, {"Qwen3-4B", 4.02}};
  for (const auto& [name, billions] : tied) {
    const ServedModel model = *find_served_model(name);
    EXPECT_NEAR((model.layer_weights() + model.vocabulary_weights()) / 1e9, billions,
                0.004 * billions)
        << name;
  }
}

TEST(ServedModel, AnyModelOfTheListIsServedOrSaysWhyNot) {
  for (const geometry::ModelPreset& preset : geometry::model_presets()) {
    const Result<ServedModel> model = find_served_model(preset.name);
    if (model) {
      EXPECT_EQ(2 * model->kv_numbers_per_token(), static_cast<double>(preset.kv_bytes_per_token()))
          << preset.name;
      continue;
    }
    EXPECT_EQ(std::string(model.error().message),
              std::string("model: ") + preset.name +
                  " has experts, latent attention or sliding windows, expected a dense model: the "
                  "times of others are not known");
  }
  EXPECT_STREQ(find_served_model("LLaMA3-70B")->name, "Llama-3-70B");
}

TEST(ServedModel, AnUnknownNameIsAnErrorWithTheNearestOnes) {
  const Result<ServedModel> model = find_served_model("Llama-9");
  ASSERT_FALSE(model.ok());
  EXPECT_EQ(model.error().code, Code::kInvalidArgument);
  EXPECT_NE(std::string(model.error().message).find("model: Llama-9 is unknown"),
            std::string::npos);
  EXPECT_NE(std::string(model.error().message).find("Llama-3-8B"), std::string::npos);
}

TEST(GpuSpec, IsFoundHoweverItsNameIsWritten) {
  for (const char* name : {"RTXPRO6000", "rtx_pro_6000", "RTX PRO 6000"}) {
    const Result<GpuSpec> gpu = find_gpu(name);
    ASSERT_TRUE(gpu.ok()) << name;
    EXPECT_STREQ(gpu->name, "RTXPRO6000");
  }
  EXPECT_FALSE(find_gpu("H1000").ok());
}

TEST(GpuSpec, LinksHaveNames) {
  EXPECT_EQ(find_link("PCIe5")->bytes_per_second, find_gpu("RTXPRO6000")->link_bytes_per_second);
  EXPECT_EQ(find_link("nvlink-4")->latency_s, find_gpu("H100_SXM")->link_latency_s);
  const Result<LinkSpec> unknown = find_link("ethernet");
  ASSERT_FALSE(unknown);
  EXPECT_EQ(std::string(unknown.error().message),
            "link \"ethernet\" is not known here; expected one of pcie4, pcie5, nvlink3, nvlink4, "
            "nvlink5");
}

TEST(GpuSpec, AllReduceMovesTwoSharesOfTheBytes) {
  GpuSpec gpu = *find_gpu("h100_sxm");
  gpu.link_bytes_per_second = 1e9;
  gpu.link_latency_s = 1e-3;
  EXPECT_DOUBLE_EQ(gpu.all_reduce_seconds(1e6, 1), 0);
  EXPECT_DOUBLE_EQ(gpu.all_reduce_seconds(1e6, 2), 1e-3 + 1e-3);
  EXPECT_DOUBLE_EQ(gpu.all_reduce_seconds(1e6, 4), 1e-3 + 1.5e-3);
}

TEST(KvCapacity, IsThatOfTheRecordedEngine) {
  // vLLM 0.19 with Llama-3.1-8B on an RTX 4090 recorded 2,588 blocks of 16 tokens.
  const Result<std::uint64_t> blocks =
      estimate_kv_blocks(*find_gpu("RTX4090"), *find_served_model("Llama-3.1-8B"), {});
  ASSERT_TRUE(blocks.ok());
  EXPECT_NEAR(static_cast<double>(*blocks), 2588, 30);
}

TEST(KvCapacity, AModelThatDoesNotFitIsAnError) {
  const Result<std::uint64_t> blocks =
      estimate_kv_blocks(*find_gpu("RTX4090"), *find_served_model("Qwen3-32B"), {});
  ASSERT_FALSE(blocks.ok());
  EXPECT_EQ(blocks.error().code, Code::kInvalidArgument);
  EXPECT_TRUE(estimate_kv_blocks(*find_gpu("H100_SXM"), *find_served_model("Qwen3-32B"), {}).ok());
}

TEST(Quantiles, LieBetweenNeighbours) {
  EXPECT_DOUBLE_EQ(quantile_of({4, 1, 3, 2}, 0.5), 2.5);
  EXPECT_DOUBLE_EQ(quantile_of({4, 1, 3, 2}, 1), 4);
  EXPECT_DOUBLE_EQ(quantile_of({7}, 0.9), 7);
  EXPECT_DOUBLE_EQ(quantile_of({}, 0.9), 0);
}

}  // namespace
}  // namespace cachalot::sched
