// --model: every command that takes it takes the same names and the same dimensions.
#include <string>

#include "program.h"

namespace cachalot::process_test {
namespace {

constexpr const char* kTrace = CACHALOT_TEST_ASSETS "/traces/conversation_trace.jsonl.gz";
constexpr int kUsage = 2;

class ModelFlag : public ProcessTest {
 protected:
  // What follows "--model MODEL".
  static Arguments with_model(Arguments command, const char* model) {
    command.insert(command.end(), {"--model", model});
    return command;
  }
  std::vector<Arguments> commands() const {
    return {{"hitrate", "--trace", kTrace},
            {"vtensor", "--trace", kTrace},
            {"replay", "--trace", kTrace},
            {"pool", "create", path("kv"), "--block-tokens", "16", "--capacity-blocks", "4"},
            {"serve", path("kv"), "--create", "--block-tokens", "16", "--capacity-blocks", "4"}};
  }
};

// All sizes from the dimensions of Llama-3-8B, from its name, and of half as many bytes a number.
TEST_F(ModelFlag, OfPoolCreateTakesDimensions) {
  const auto block_bytes = [&](const char* name, const char* model) {
    expect_done(run(with_model(
        {"pool", "create", path(name), "--block-tokens", "16", "--capacity-blocks", "4"}, model)));
    return run({"pool", "info", path(name), "--json", "-"}).json()["geometry"]["block_bytes"];
  };
  EXPECT_EQ(block_bytes("a", "Llama-3-8B"), 2097152);
  EXPECT_EQ(block_bytes("b", "layers=32,kv_heads=8,head_dim=128"), 2097152);
  EXPECT_EQ(block_bytes("c", "layers=32,kv_heads=8,head_dim=128,dtype=f8"), 1048576);
  EXPECT_EQ(block_bytes("d", "layers=61,kv_lora_rank=512,qk_rope_head_dim=64"), 1124352);
}

// As models are published: with heads by name, without, with latents, inside a model for images.
TEST_F(ModelFlag, OfPoolCreateTakesAConfigFile) {
  int pools = 0;
  const auto block_bytes = [&](const std::string& config) {
    const std::string pool = path("pool" + std::to_string(++pools));
    const std::string file = write("config.json", config);
    expect_done(run({"pool", "create", pool, "--block-tokens", "16", "--capacity-blocks", "4",
                     "--model", pools % 2 == 0 ? file : path("")}));
    return run({"pool", "info", pool, "--json", "-"}).json()["geometry"]["block_bytes"];
  };
  EXPECT_EQ(block_bytes(R"({"num_hidden_layers": 32, "num_attention_heads": 32, "hidden_size": 4096,
                            "num_key_value_heads": 8, "torch_dtype": "bfloat16"})"),
            2097152);
  EXPECT_EQ(block_bytes(R"({"num_hidden_layers": 2, "num_attention_heads": 4, "hidden_size": 64,
                            "dtype": "float32"})"),
            2 * 2 * 4 * 16 * 2 * 16);
  EXPECT_EQ(block_bytes(R"({"text_config": {"num_hidden_layers": 61, "kv_lora_rank": 512,
                            "qk_rope_head_dim": 64, "num_key_value_heads": 128}})"),
            1124352);
  EXPECT_EQ(block_bytes(R"({"num_hidden_layers": 2, "num_key_value_heads": 8, "head_dim": 128,
                            "attn_type_list": [1, 1]})"),
            2 * 2 * 8 * 128 * 2 * 16);
  // One layer of six has no window: vLLM keeps two layers in a block.
  EXPECT_EQ(block_bytes(R"({"text_config": {"num_hidden_layers": 12, "num_key_value_heads": 8,
                            "head_dim": 128, "model_type": "gemma3_text"}})"),
            2 * 2 * 8 * 128 * 2 * 16);
  EXPECT_EQ(block_bytes(R"({"num_hidden_layers": 4, "num_key_value_heads": 8, "head_dim": 128,
                            "layer_types": ["sliding_attention", "full_attention",
                                            "sliding_attention", "full_attention"]})"),
            2 * 2 * 8 * 128 * 2 * 16);
  write("latent.json", R"({"num_hidden_layers": 61, "kv_lora_rank": 512, "qk_rope_head_dim": 64})");
  const std::string half = path("latent.json") + ",dtype=f8";
  expect_done(run({"pool", "create", path("half"), "--block-tokens", "16", "--capacity-blocks", "4",
                   "--model", half}));
  EXPECT_EQ(run({"pool", "info", path("half"), "--json", "-"}).json()["geometry"]["block_bytes"],
            1124352 / 2);
}

TEST_F(ModelFlag, OfPoolCreateRefusesAConfigFileThatTellsNoSize) {
  const auto refusal = [&](const std::string& config, int code, const std::string& part) {
    const std::string file = write("config.json", config);
    expect_error(run({"pool", "create", path("kv"), "--block-tokens", "16", "--capacity-blocks",
                      "4", "--model", file}),
                 code, {"--model", part});
  };
  refusal("{", kUsage, "is no JSON object");
  refusal("{}", kUsage, "expected num_hidden_layers");
  refusal(R"({"num_hidden_layers": -1, "num_key_value_heads": 8, "head_dim": 128})", kUsage,
          "num_hidden_layers is -1, expected a whole number");
  refusal(R"({"num_hidden_layers": 1, "num_key_value_heads": "8", "head_dim": null})", kUsage,
          "num_key_value_heads is \"8\", expected a whole number");
  refusal(R"({"layer_types": ["full_attention", "linear_attention"]})", kUsage, "linear_attention");
  refusal(R"({"num_hidden_layers": 48, "num_key_value_heads": 2, "head_dim": 256,
              "full_attention_interval": 4})",
          kUsage, "full_attention_interval");
  refusal(R"({"num_hidden_layers": 2, "num_key_value_heads": 2, "head_dim": 256,
              "attn_type_list": [0, 1]})",
          kUsage, "attn_type_list");
  expect_error(run({"pool", "create", path("kv"), "--model", path("none.json")}), kUsage,
               {"--model", "none.json", "No such file"});
}

// What a token takes, not what shares a block.
TEST_F(ModelFlag, OfHitrateTakesAllLayersOfAConfigFile) {
  const std::string file = write("config.json", R"({"num_hidden_layers": 12, "head_dim": 128,
                                 "num_key_value_heads": 8, "sliding_window_pattern": 6})");
  EXPECT_EQ(
      run(with_model({"hitrate", "--trace", kTrace, "--no-summary", "--json", "-"}, file.c_str()))
          .json()["block_bytes"],
      12 * 2 * 8 * 128 * 2 * 512);
}

TEST_F(ModelFlag, OfHitrateTakesDimensions) {
  const auto block_bytes = [&](const char* model) {
    return run(with_model({"hitrate", "--trace", kTrace, "--no-summary", "--json", "-"}, model))
        .json()["block_bytes"];
  };
  EXPECT_EQ(block_bytes("llama-3.1-8b"), 131072 * 512);
  EXPECT_EQ(block_bytes("layers=32,kv_heads=8,head_dim=128"), 131072 * 512);
  EXPECT_EQ(block_bytes("Llama-3-8B,dtype=f8"), 65536 * 512);
}

TEST_F(ModelFlag, OfVtensorTakesDimensions) {
  const auto peak_of = [&](const char* model) {
    const Outcome outcome = run(with_model(
        {"vtensor", "--trace", kTrace, "--limit", "200", "--layout", "folded", "--json", "-"},
        model));
    expect_done(outcome);
    return outcome.json()["rows"][0]["peak_bytes"];
  };
  const nlohmann::json named = peak_of("DeepSeek-V3");
  EXPECT_EQ(peak_of("layers=61,kv_lora_rank=512,qk_rope_head_dim=64"), named);
  EXPECT_NE(peak_of("layers=61,kv_lora_rank=512,qk_rope_head_dim=64,dtype=f8"), named);
}

TEST_F(ModelFlag, OfReplayTakesDimensions) {
  const Outcome outcome =
      run(with_model({"replay", "--trace", kTrace, "--limit", "20", "--verify", "off",
                      "--block-tokens", "512", "--capacity-blocks", "500", "--json", "-"},
                     "layers=1,kv_heads=1,head_dim=8"));
  expect_done(outcome);
  EXPECT_EQ(outcome.json()["block_bytes"], 32 * 512);
}

TEST_F(ModelFlag, OfEveryCommandNamesWhatItDoesNotTake) {
  for (const Arguments& command : commands()) {
    SCOPED_TRACE(command[0]);
    const auto refused = [&](const char* model, std::vector<std::string> parts) {
      parts.push_back("--model");
      expect_error(run(with_model(command, model)), kUsage, parts);
    };
    refused("Dromedary-1", {"\"Dromedary-1\" is unknown", "Llama-3-8B", "Kimi-K2",
                            "layers=32,kv_heads=8,head_dim=128"});
    refused("layers=32,heads=8,head_dim=128", {"heads=8", "kv_heads"});
    refused("layers=32,kv_heads=8", {"head_dim is 0, expected at least 1"});
    refused("layers=32,kv_heads=8,head_dim=1e2", {"head_dim is \"1e2\""});
    refused("", {"Llama-3-8B"});
  }
  EXPECT_EQ(listing(), std::set<std::string>());
}

}  // namespace
}  // namespace cachalot::process_test
