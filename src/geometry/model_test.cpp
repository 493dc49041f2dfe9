#include "geometry/model.h"

#include <gtest/gtest.h>

#include <string>

namespace cachalot::geometry {
namespace {

std::uint64_t bytes_per_token(std::string_view text) {
  const Result<Model> model = parse_model(text);
  EXPECT_TRUE(model) << (model ? "" : model.error().message);
  return model ? model->kv_bytes_per_token() : 0;
}

void expect_refused(std::string_view text, const char* words) {
  const Result<Model> model = parse_model(text);
  ASSERT_FALSE(model) << text;
  EXPECT_EQ(model.error().code, Code::kInvalidArgument);
  EXPECT_NE(std::string(model.error().message).find(words), std::string::npos)
      << model.error().message;
}

TEST(Model, IsKnownByNameOrByDimensions) {
  EXPECT_EQ(bytes_per_token("Llama-3-8B"), 131072u);
  EXPECT_EQ(bytes_per_token("layers=32,kv_heads=8,head_dim=128"), 131072u);
  EXPECT_EQ(bytes_per_token("head_dim=128,dtype=BF16,layers=32,kv_heads=8"), 131072u);
  EXPECT_EQ(bytes_per_token("layers=61,kv_lora_rank=512,qk_rope_head_dim=64"), 70272u);
  EXPECT_EQ(bytes_per_token("layers=61,kv_lora_rank=512"), 61u * 1024);
}

TEST(Model, HasTheDtypeThatIsGiven) {
  EXPECT_EQ(bytes_per_token("layers=32,kv_heads=8,head_dim=128,dtype=f8"), 65536u);
  EXPECT_EQ(bytes_per_token("layers=32,kv_heads=8,head_dim=128,dtype=f32"), 262144u);
  EXPECT_EQ(bytes_per_token("qwen3-32b,dtype=i8"), 131072u);
}

TEST(Model, OfANameMayHaveOtherDimensions) {
  EXPECT_EQ(bytes_per_token("Qwen3-32B,layers=16"), 65536u);
  const Result<Model> model = parse_model("qwen3-32b,layers=16,dtype=f8");
  ASSERT_TRUE(model);
  EXPECT_EQ(model->name, "Qwen3-32B,layers=16,dtype=f8");
  EXPECT_EQ(parse_model("LLAMA-3-8B")->name, "Llama-3-8B");
}

TEST(Model, IsRefusedWithTheKeyAndItsValue) {
  expect_refused("", "is unknown");
  expect_refused("Dromedary-1", "Dromedary-1 is unknown");
  expect_refused("layers=32,kv_heads=8", "head_dim is 0, expected at least 1");
  expect_refused("kv_heads=8,head_dim=128", "layers is 0");
  expect_refused("layers=32,heads=8,head_dim=128",
                 "\"heads=8\" is no dimension, expected KEY=VALUE");
  expect_refused("layers=32,kv_heads,head_dim=128", "\"kv_heads\" is no dimension");
  expect_refused("layers=32,,kv_heads=8", "\"\" is no dimension");
  expect_refused("layers=32,layers=32,kv_heads=8,head_dim=128", "\"layers\" stands twice");
  expect_refused("layers=32x,kv_heads=8,head_dim=128",
                 "layers is \"32x\", expected a whole number");
  expect_refused("layers=-1,kv_heads=8,head_dim=128", "layers is \"-1\"");
  expect_refused("layers=,kv_heads=8,head_dim=128", "layers is \"\"");
  expect_refused("layers=4294967296,kv_heads=8,head_dim=128", "layers is \"4294967296\"");
  expect_refused("layers=32,kv_heads=8,head_dim=128,dtype=f4", "f4");
  expect_refused("layers=32,kv_heads=8,head_dim=128,kv_lora_rank=512", "kv_heads is 8, expected 0");
  expect_refused("Llama-3-8B,kv_lora_rank=512", "kv_lora_rank is 512, expected 0");
  expect_refused("layers=32,Llama-3-8B", "\"Llama-3-8B\" is no dimension");
  expect_refused("layers=4294967295,kv_heads=4294967295,head_dim=4294967295", "exceeds 2^63");
}

TEST(Model, EveryNameIsAmongTheChoices) {
  for (const ModelPreset& preset : model_presets()) {
    EXPECT_TRUE(parse_model(preset.name)) << preset.name;
    EXPECT_NE(model_choices().find(preset.name), std::string::npos) << preset.name;
  }
}

}  // namespace
}  // namespace cachalot::geometry
