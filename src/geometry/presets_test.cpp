#include "geometry/presets.h"

#include <gtest/gtest.h>

#include <string>

namespace cachalot::geometry {
namespace {

std::uint64_t bytes_per_token(const char* name) {
  const Result<const ModelPreset*> preset = find_preset(name);
  return preset ? (*preset)->kv_bytes_per_token() : 0;
}

TEST(Presets, TakeThePublishedBytesPerToken) {
  EXPECT_EQ(bytes_per_token("Llama-3-8B"), 128u << 10);
  EXPECT_EQ(bytes_per_token("Llama-3-70B"), 320u << 10);
  EXPECT_EQ(bytes_per_token("Qwen2.5-7B"), 56u << 10);
  EXPECT_EQ(bytes_per_token("Qwen3-32B"), 256u << 10);
  EXPECT_EQ(bytes_per_token("DeepSeek-V3"), 70272u);
  EXPECT_EQ(bytes_per_token("gpt-oss-120b"), 72u << 10);
  EXPECT_EQ(bytes_per_token("Llama-3.1-405B"), 504u << 10);
  EXPECT_EQ(bytes_per_token("Qwen3-235B-A22B"), 188u << 10);
  EXPECT_EQ(bytes_per_token("Kimi-K2"), bytes_per_token("DeepSeek-V3"));
}

TEST(Presets, DeepSeekV3TakesSixtySevenMebibytesForAThousandTokens) {
  const double mebibytes = static_cast<double>(bytes_per_token("DeepSeek-V3")) * 1000 / (1 << 20);
  EXPECT_NEAR(mebibytes, 67.0, 0.05);
}

TEST(Presets, Qwen3FragmentsAre32KiBForABlockOf16Tokens) {
  const Result<const ModelPreset*> preset = find_preset("Qwen3-32B");
  ASSERT_TRUE(preset);
  EXPECT_EQ((*preset)->kv_elements_per_layer() / 2 * 2 * 16, 32u << 10);  // K or V of one layer
}

TEST(Presets, AreFoundInEitherCaseButOnlyByTheWholeName) {
  EXPECT_EQ(bytes_per_token("deepseek-v3"), 70272u);
  EXPECT_EQ(bytes_per_token("DeepSeek-V"), 0u);
  EXPECT_EQ(bytes_per_token("DeepSeek-V33"), 0u);
  EXPECT_EQ(bytes_per_token(""), 0u);
}

TEST(Presets, AreFoundAsPublishersAndPapersWriteThem) {
  for (const char* name : {"meta-llama/Meta-Llama-3.1-8B-Instruct", "Llama-3.1-8B-Instruct",
                           "llama3.1-8b", "Llama_3.1_8B"}) {
    const Result<const ModelPreset*> preset = find_preset(name);
    ASSERT_TRUE(preset) << name;
    EXPECT_STREQ((*preset)->name, "Llama-3.1-8B");
  }
  EXPECT_STREQ((*find_preset("LLaMA3-70B"))->name, "Llama-3-70B");
  EXPECT_FALSE(find_preset("Instruct"));
  EXPECT_FALSE(find_preset("meta-llama/"));
}

TEST(Presets, AnUnknownNameIsAnErrorWithTheNamesThatBeginMostLikeIt) {
  const Result<const ModelPreset*> preset = find_preset("GPT-7");
  ASSERT_FALSE(preset);
  EXPECT_EQ(preset.error().code, Code::kInvalidArgument);
  const std::string message = preset.error().message;
  EXPECT_NE(message.find("GPT-7"), std::string::npos) << message;
  EXPECT_NE(message.find("such as gpt-oss-20b, gpt-oss-120b"), std::string::npos) << message;
  const std::string long_name(300, 'q');
  const std::string nearest = find_preset("qwen3-99B").error().message;
  EXPECT_NE(nearest.find("such as Qwen3-4B, Qwen3-8B, Qwen3-14B, Qwen3-32B, Qwen3-30B-A3B"),
            std::string::npos)
      << nearest;
  EXPECT_TRUE(std::string(find_preset(long_name).error().message).ends_with("Qwen3-4B, Qwen3-8B"))
      << find_preset(long_name).error().message;
}

}  // namespace
}  // namespace cachalot::geometry
