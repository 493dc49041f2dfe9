// `cachalot vtensor` on the conversation trace: what is measured is what the arithmetic says.
#include <string>

#include "program.h"

namespace cachalot::process_test {
namespace {

constexpr const char* kTrace = CACHALOT_TEST_ASSETS "/traces/conversation_trace.jsonl.gz";

class VTensorCommand : public ProcessTest {
 protected:
  static const nlohmann::json& row(const nlohmann::json& result, const char* memory,
                                   const char* layout) {
    for (const nlohmann::json& each : result["rows"]) {
      if (each["memory"] == memory && each["layout"] == layout) return each;
    }
    ADD_FAILURE() << "no row " << memory << " " << layout;
    static const nlohmann::json nothing;
    return nothing;
  }
};

TEST_F(VTensorCommand, MeasuresWhatTheArithmeticSaysAndNeverWaits) {
  for (const char* model : {"Llama-3-8B", "deepseek-v3"}) {
    SCOPED_TRACE(model);
    const Outcome outcome = run({"vtensor", "--trace", kTrace, "--model", model, "--limit", "1500",
                                 "--layout", "per_layer,folded,folded_parts", "--json", "-"});
    expect_done(outcome);
    const nlohmann::json result = outcome.json();
    EXPECT_EQ(result["agrees"], true);
    ASSERT_EQ(result["rows"].size(), 9u);
    for (const nlohmann::json& each : result["rows"]) {
      EXPECT_EQ(each["formula"]["agrees"], true) << each;
      EXPECT_EQ(each["formula"]["wrong_steps"], 0) << each;
      EXPECT_EQ(each["peak_bytes"], each["formula"]["peak_bytes"]);
      EXPECT_EQ(each.value("waits", 0), 0) << each;
    }
    const double folded = row(result, "vtensor", "folded")["bytes_per_kv_byte"];
    EXPECT_LT(folded, row(result, "vtensor", "per_layer")["bytes_per_kv_byte"]);
    EXPECT_LT(folded, 1.01);
    EXPECT_GT(row(result, "static", "folded")["bytes_per_kv_byte"], 5.0);
  }
}

TEST_F(VTensorCommand, SharingSavesWhatTheArithmeticSays) {
  const Outcome outcome =
      run({"vtensor", "--trace", kTrace, "--limit", "1500", "--sharing", "on", "--json", "-"});
  expect_done(outcome);
  const nlohmann::json result = outcome.json();
  for (const char* layout : {"per_layer", "folded"}) {
    const nlohmann::json& vtensor = row(result, "vtensor", layout);
    EXPECT_EQ(vtensor["formula"]["agrees"], true);
    EXPECT_EQ(vtensor["sharing"]["chunks"], vtensor["formula"]["sharing_chunks"]);
    EXPECT_EQ(vtensor["sharing"]["tokens"], vtensor["formula"]["sharing_tokens"]);
    EXPECT_GT(vtensor["sharing"]["tokens"], 1'000'000);
  }
}

TEST_F(VTensorCommand, RunsByArrivalAndOnASmallDevice) {
  const Outcome outcome =
      run({"vtensor", "--trace", kTrace, "--limit", "300", "--arrivals", "--sharing", "on",
           "--capacity", "200GiB", "--idle", "8GiB", "--layout", "folded", "--json", "-"});
  expect_done(outcome);
  const nlohmann::json result = outcome.json();
  const nlohmann::json& vtensor = row(result, "vtensor", "folded");
  EXPECT_FALSE(vtensor.contains("formula"));
  EXPECT_GT(vtensor["sharing"]["evicted_blocks"], 0);
  EXPECT_LE(vtensor["peak_bytes"], std::uint64_t{200} << 30);
}

TEST_F(VTensorCommand, RunsOnRealMemory) {
  const std::string trace = write("azure.csv",
                                  "TIMESTAMP,ContextTokens,GeneratedTokens\n"
                                  "2023-11-16 18:15:46.6805900,40,20\n"
                                  "2023-11-16 18:15:50.9951690,100,30\n");
  const Outcome outcome =
      run({"vtensor", "--trace", trace, "--backend", "memfd", "--layout", "folded", "--json", "-"});
  expect_done(outcome);
  EXPECT_EQ(outcome.json()["agrees"], true);
  EXPECT_EQ(outcome.json()["kv_peak_bytes"], 180 * 131072);
  EXPECT_TRUE(outcome.json().at("block_tokens").is_null());
}

TEST_F(VTensorCommand, TellsTheBlocksOfTheTraceWhetherTheyAreSharedOrNot) {
  for (const char* sharing : {"off", "on"}) {
    const Outcome outcome = run({"vtensor", "--trace", kTrace, "--limit", "10", "--layout",
                                 "folded", "--sharing", sharing, "--json", "-"});
    expect_done(outcome);
    EXPECT_EQ(outcome.json()["block_tokens"], 512);
    EXPECT_EQ(row(outcome.json(), "vtensor", "folded").contains("sharing"),
              sharing == std::string("on"));
  }
}

TEST_F(VTensorCommand, SaysWhatIsWrong) {
  const std::string azure = write("azure.csv",
                                  "TIMESTAMP,ContextTokens,GeneratedTokens\n"
                                  "2023-11-16 18:15:46.6805900,40,20\n");
  const auto expect_usage = [&](Arguments more, const std::vector<std::string>& parts) {
    Arguments arguments = {"vtensor", "--trace", azure};
    arguments.insert(arguments.end(), more.begin(), more.end());
    expect_error(run(arguments), 2, parts);
  };
  expect_usage({"--model", "gpt-2"}, {"gpt-2", "DeepSeek-V3"});
  expect_usage({"--layout", "diagonal"}, {"diagonal", "folded_parts"});
  expect_usage({"--chunk-bytes", "1MiB"}, {"1048576", "2097152"});
  expect_usage({"--chunk-bytes", "0"}, {"--chunk-bytes"});
  expect_usage({"--costs", "mine"}, {"mine", "kvcached_bench"});
  expect_usage({"--sharing", "on"}, {"ids"});
  expect_usage({"--concurrency", "8", "--arrivals"}, {"--concurrency"});
  for (const char* step : {"nan", "inf", "-1", "0", "0x10", "1e3", "60001", ""}) {
    expect_usage({"--step-ms", step}, {"--step-ms"});
  }
  expect_usage({"--max-tokens", "18446744073709551616"}, {"--max-tokens"});
  expect_usage({"--max-tokens", "59"}, {azure, "1 to 59"});  // the only request has 60
  // What would have no effect.
  expect_usage({"--costs", "kvcached_bench", "--backend", "memfd"}, {"--costs", "memfd"});
  expect_usage({"--synthetic-prefix", "shared=8"}, {"--synthetic-prefix", "--sharing on"});
  expect_usage({"--block-tokens", "16"}, {"--block-tokens", azure});
  for (const char* capacity : {"0", "1MiB", "2MiB", "127MiB"}) {  // 64 planes in chunks of 2 MiB
    expect_usage({"--capacity", capacity},
                 {std::string("--capacity: ") + capacity + ",", "134217728", "per_layer"});
  }
  expect_done(run({"vtensor", "--trace", azure, "--capacity", "8MiB", "--layout", "folded"}));
  expect_usage({"--max-tokens", "4294967296"},
               {"--max-tokens: 4294967296", "562949953421312", "140737488355328"});
  const std::string longer = write("longer.csv",
                                   "TIMESTAMP,ContextTokens,GeneratedTokens\n"
                                   "2023-11-16 18:15:46.6805900,2000,20\n");
  expect_error(run({"vtensor", "--trace", longer, "--capacity", "128MiB"}), 3, {"chunks"});
  expect_error(run({"vtensor", "--trace", path("none")}), 2, {"none"});
  const std::string empty = write("empty.csv",
                                  "TIMESTAMP,ContextTokens,GeneratedTokens\n"
                                  "2023-11-16 18:15:46.6805900,0,0\n");
  expect_error(run({"vtensor", "--trace", empty}), 2, {empty, "no request"});
}

}  // namespace
}  // namespace cachalot::process_test
