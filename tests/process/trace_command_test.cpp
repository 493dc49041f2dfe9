// `cachalot trace`: figures of real traces, conversions, made-up loads, and every kind of bad input.
#include <algorithm>
#include <string>

#include "program.h"

namespace cachalot::process_test {
namespace {

#define TRACES CACHALOT_TEST_ASSETS "/traces/"
constexpr const char* kConversation = TRACES "conversation_trace.jsonl.gz";
constexpr const char* kSession = TRACES "weka_session_0010.json.gz";
constexpr const char* kShortSession = TRACES "weka_session_0702.json.gz";
constexpr const char* kAzure =
    "TIMESTAMP,ContextTokens,GeneratedTokens\r\n"
    "2023-11-16 18:17:03.9799600,4808,10\r\n"
    "2023-11-16 18:17:04.0319600,3180,8\r\n";

class TraceCommand : public ProcessTest {
 protected:
  // The figures of a trace.
  nlohmann::json info(const std::string& file, const Arguments& more = {}) const {
    Arguments arguments = {"trace", "info", file, "--json", "-"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    const Outcome outcome = run(arguments);
    expect_done(outcome);
    nlohmann::json result = outcome.json();
    for (const char* const other : {"wall_s", "trace", "flags"}) result.erase(other);
    return result;
  }
  nlohmann::json hitrate(const std::string& file, const std::string& capacities) const {
    const Outcome outcome =
        run({"hitrate", "--trace", file, "--capacity-blocks", capacities, "--json", "-"});
    expect_done(outcome);
    nlohmann::json result = outcome.json();
    for (const char* const other : {"wall_s", "trace", "flags"}) result.erase(other);
    return result;
  }
};

TEST_F(TraceCommand, InfoGivesTheFiguresOfTheConversationTrace) {
  const nlohmann::json trace = info(kConversation);
  EXPECT_EQ(trace["format"], "mooncake");
  EXPECT_EQ(trace["requests"], 12031);
  EXPECT_EQ(trace["blocks_total"], 288500);
  EXPECT_EQ(trace["blocks_unique"], 182790);
  EXPECT_EQ(trace["inconsistent_ids"], 0);
  EXPECT_EQ(trace["ideal"]["hit_blocks"], 105710);
  EXPECT_NEAR(trace["ideal"]["block_hit_rate"].get<double>(), 0.3664, 0.00005);
  EXPECT_NEAR(trace["ideal"]["token_hit_rate"].get<double>(), 0.3736, 0.00005);
  EXPECT_NEAR(trace["ideal"]["full_block_hit_rate"].get<double>(), 0.3819, 0.00005);
  EXPECT_NEAR(trace["ideal"]["mean_request_token_hit_rate"].get<double>(), 0.4094, 0.00005);
  const Outcome table = run({"trace", "info", kConversation});
  expect_done(table);
  EXPECT_NE(table.out.find("288500, 182790 distinct"), std::string::npos) << table.out;
}

TEST_F(TraceCommand, InfoReadsASessionWithSubAgents) {
  const nlohmann::json trace = info(kSession);
  EXPECT_EQ(trace["format"], "weka");
  EXPECT_EQ(trace["block_tokens"], 64);
  EXPECT_EQ(trace["block_tokens_stated"], true);
  EXPECT_EQ(trace["requests"], 172);
  EXPECT_EQ(trace["unsorted_requests"], 0);
  EXPECT_EQ(trace["blocks_total"], 235356);
  EXPECT_EQ(trace["blocks_unique"], 13587);
  EXPECT_EQ(trace["inconsistent_ids"], 0);
}

TEST_F(TraceCommand, InfoOfSeveralTracesGivesRows) {
  const Outcome outcome = run({"trace", "info", kSession, kShortSession, "--json", "-"});
  expect_done(outcome);
  ASSERT_EQ(outcome.json()["rows"].size(), 2u);
  EXPECT_EQ(outcome.json()["rows"][1]["requests"], 8);
}

TEST_F(TraceCommand, ATraceWithoutIdsHasFiguresAndTakesAStatedPrefixStructure) {
  const std::string file = write("azure.csv", kAzure);
  const nlohmann::json bare = info(file);
  EXPECT_EQ(bare["has_ids"], false);
  EXPECT_EQ(bare["input_tokens"]["max"], 4808);
  EXPECT_FALSE(bare.contains("blocks_total"));
  const nlohmann::json assumed = info(file, {"--synthetic-prefix", "shared=1024"});
  EXPECT_EQ(assumed["ids_are_synthetic"], true);
  EXPECT_EQ(assumed["blocks_total"], 17);
  EXPECT_EQ(assumed["ideal"]["hit_blocks"], 2);
  for (const Arguments& command : {Arguments{"replay", "--trace", file},
                                   {"trace", "convert", "--out", path("o"), "--trace", file}}) {
    expect_error(run(command), 2,
                 {"azure.csv: the format azure has no block ids", "--synthetic-prefix"});
  }
  expect_error(run({"trace", "info", kConversation, "--synthetic-prefix", "shared=1"}), 2,
               {"conversation_trace.jsonl.gz: the format mooncake has block ids of its own"});
  expect_error(run({"trace", "info", file, "--synthetic-prefix", "shared=many"}), 2,
               {"\"shared=many\"", "expected shared=TOKENS"});
}

// The format has no place for it.
TEST_F(TraceCommand, ConvertSaysWhichBlocksItsResultHasToBeReadWith) {
  const Outcome own = run({"trace", "convert", "--trace", kSession, "--out", path("o.jsonl")});
  expect_done(own);
  EXPECT_NE(own.out.find("give --block-tokens 64"), std::string::npos) << own.out;
  expect_error(run({"trace", "info", path("o.jsonl"), "--block-tokens", "512"}), 2,
               {"at 512 tokens a block; give --block-tokens"});
  expect_done(run({"trace", "info", path("o.jsonl"), "--block-tokens", "64"}));
  const Outcome usual =
      run({"trace", "convert", "--trace", kConversation, "--out", path("u.jsonl")});
  expect_done(usual);
  EXPECT_EQ(usual.out.find("--block-tokens"), std::string::npos) << usual.out;
}

TEST_F(TraceCommand, AResultNeverTakesThePlaceOfTheTraceItIsMadeFrom) {
  const std::string file = path("trace.jsonl.gz"), link = path("link");
  std::filesystem::copy_file(kConversation, file);
  std::filesystem::create_symlink(file, link);
  const std::string before = read(file);
  for (const std::string& same : {file, link}) {
    expect_error(run({"trace", "convert", "--trace", file, "--out", same}), 2, {"--out", same});
    expect_error(run({"trace", "convert", "--trace", file, "--out", path("o"), "--json", same}), 2,
                 {"--json", same});
    expect_error(
        run({"trace", "convert", "--trace", kConversation, "--trace", file, "--out", same}), 2,
        {"--out", same});
    expect_error(run({"trace", "info", kConversation, file, "--json", same}), 2, {"--json", same});
    expect_error(run({"hitrate", "--trace", file, "--csv", same}), 2, {"--csv", same});
    expect_error(run({"hitrate", "--trace", file, "--json", same}), 2, {"--json", same});
    expect_error(run({"replay", "--trace", file, "--json", same}), 2, {"--json", same});
    expect_error(run({"put", "key", "--pool", path("kv"), "--file", file, "--json", same}), 2,
                 {"--json", same});
  }
  const std::string drawing = path("trace.svg");
  std::filesystem::create_symlink(file, drawing);
  expect_error(run({"hitrate", "--trace", file, "--plot", drawing}), 2, {"--plot", drawing});
  EXPECT_EQ(read(file), before);
}

TEST_F(TraceCommand, ConvertKeepsOneTraceAsItIs) {
  const std::string copy = path("copy.jsonl.gz");
  expect_done(run({"trace", "convert", "--trace", kConversation, "--out", copy}));
  const std::string capacities = "1000,10000,inf";
  EXPECT_EQ(hitrate(copy, capacities), hitrate(kConversation, capacities));
  EXPECT_EQ(info(copy)["input_tokens"], info(kConversation)["input_tokens"]);
  EXPECT_EQ(listing(), std::set<std::string>{"copy.jsonl.gz"});
}

TEST_F(TraceCommand, ConvertMergesSessionsAndMakesLargerBlocks) {
  const Outcome outcome = run({"trace", "convert", "--trace", kSession, "--trace", kShortSession,
                               "--block-tokens", "512", "--out", path("all.jsonl"), "--json", "-"});
  expect_done(outcome);
  EXPECT_EQ(outcome.json()["requests"], 180);
  EXPECT_EQ(outcome.json()["renumbered"], true);
  const nlohmann::json all = info(path("all.jsonl"));
  EXPECT_EQ(all["requests"], 180);
  EXPECT_EQ(all["unsorted_requests"], 0);
  EXPECT_EQ(all["inconsistent_ids"], 0);
  for (const char* one : {kSession, kShortSession}) {
    expect_done(run({"trace", "convert", "--trace", one, "--block-tokens", "512", "--out",
                     path(one == kSession ? "a" : "b")}));
  }
  EXPECT_EQ(all["blocks_unique"].get<int>(), info(path("a"))["blocks_unique"].get<int>() +
                                                 info(path("b"))["blocks_unique"].get<int>());
}

TEST_F(TraceCommand, ConvertToTheSameBlocksKeepsEveryHit) {
  expect_done(run({"trace", "convert", "--trace", kSession, "--out", path("same"), "--renumber"}));
  const nlohmann::json same = info(path("same"), {"--block-tokens", "64"}),
                       session = info(kSession);
  EXPECT_EQ(same["ideal"], session["ideal"]);
  EXPECT_EQ(same["blocks_unique"], session["blocks_unique"]);
  EXPECT_EQ(same["span_s"], session["span_s"]);
}

TEST_F(TraceCommand, AReplayTakesTheBlockSizeThatATraceStates) {
  const Outcome outcome = run({"replay", "--trace", kShortSession, "--engines", "1",
                               "--block-bytes", "64", "--capacity-blocks", "2000", "--json", "-"});
  expect_done(outcome);
  EXPECT_EQ(outcome.json()["blocks_total"], 5017);
  EXPECT_EQ(outcome.json()["blocks_hit"], 5017 - 908);
}

TEST_F(TraceCommand, GenerateIsDeterministicAndReadable) {
  for (const char* kind : {"agentic", "chat"}) {
    for (const char* name : {"a", "b"}) {
      expect_done(run({"trace", "generate", "--kind", kind, "--requests", "500", "--seed", "7",
                       "--out", path(name)}));
    }
    EXPECT_EQ(read(path("a")), read(path("b")));
    const nlohmann::json trace = info(path("a"));
    EXPECT_EQ(trace["requests"], 500);
    EXPECT_EQ(trace["inconsistent_ids"], 0);
    EXPECT_EQ(trace["unsorted_requests"], 0);
    EXPECT_GT(trace["ideal"]["token_hit_rate"].get<double>(), 0.3);
  }
}

TEST_F(TraceCommand, BadLinesAreNamedOrSkippedAndLeaveNoOutput) {
  const std::string good = R"({"timestamp":1,"input_length":5,"output_length":2,"hash_ids":[3]})";
  const std::string file = write("t", good + "\nbad\n" + good + "\n");
  expect_error(run({"trace", "info", file}), 2, {"/t:2: not valid JSON"});
  expect_error(run({"trace", "convert", "--trace", file, "--out", path("o")}), 2,
               {"/t:2: not valid JSON"});
  EXPECT_EQ(listing(), std::set<std::string>{"t"});
  EXPECT_EQ(info(file, {"--skip-bad-lines"})["skipped_lines"], 1);
  expect_done(run({"trace", "convert", "--trace", file, "--out", path("o"), "--skip-bad-lines"}));
  EXPECT_EQ(info(path("o"))["requests"], 2);
}

TEST_F(TraceCommand, RefusesWhatItCannotUse) {
  expect_error(run({"trace"}), 2, {"a command is missing", "info, convert, generate"});
  expect_error(run({"trace", "info", path("none")}), 2, {"none: No such file"});
  expect_error(run({"trace", "info", path("")}), 2, {"Is a directory"});
  expect_error(run({"trace", "info", write("empty", "")}), 2, {"empty: no request in it"});
  expect_error(run({"trace", "info", write("odd", "{\"a\": 1}\n")}), 2,
               {"odd:1: the format cannot be told"});
  expect_error(run({"trace", "info", kConversation, "--trace-format", "qwen"}), 2,
               {"--trace-format: \"qwen\" is no trace format", "expected auto, mooncake"});
  expect_error(run({"trace", "info", kSession, "--block-tokens", "512"}), 2,
               {"its blocks have 64 tokens, expected 512", "trace convert"});
  expect_error(
      run({"trace", "convert", "--trace", kSession, "--block-tokens", "100", "--out", path("o")}),
      2, {"block tokens: 100", "expected a multiple"});
  expect_error(run({"trace", "convert", "--trace", kSession, "--out", path("none/o")}), 2,
               {"none/o"});
  expect_error(run({"trace", "generate", "--requests", "5", "--kind", "batch", "--out", path("o")}),
               2, {"kind: \"batch\" is none, expected chat or agentic"});
  expect_error(run({"trace", "generate", "--requests", "5", "--turns", "0", "--out", path("o")}), 2,
               {"--turns: 0, expected 1 to"});
  expect_error(
      run({"trace", "generate", "--requests", "5", "--subagents", "2", "--out", path("o")}), 2,
      {"--subagents: 2, expected 0 to 1"});
  expect_error(
      run({"trace", "generate", "--requests", "5", "--block-tokens", "0", "--out", path("o")}), 2,
      {"--block-tokens: 0, expected 1 to"});
  for (const char* of_agents : {"--steps", "--subagents", "--tool-s", "--tool-tokens"}) {
    expect_error(run({"trace", "generate", "--requests", "5", "--kind", "chat", of_agents, "1",
                      "--out", path("o")}),
                 2, {of_agents, "a chat", "--kind agentic"});
  }
  EXPECT_EQ(listing(), (std::set<std::string>{"empty", "odd"}));
}

}  // namespace
}  // namespace cachalot::process_test
