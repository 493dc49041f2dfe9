// Dialects of other programs: what is no line of theirs is one error, and what is doubtful is never read in silence.
// Right files are counted by a second program: tests/trace/dialects_test.py.
#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "testing/trace/test_files.h"
#include "trace/request/request_trace.h"

namespace cachalot::trace {
namespace {

using Ids = std::vector<std::uint64_t>;

class TraceDialects : public TestFiles {
 protected:
  // Requests until the end or an error, which goes to error_; warnings go to warnings_.
  std::vector<Request> read(const std::string& name, std::string_view text,
                            RequestTraceOptions options = {.default_block_tokens = 512}) {
    error_.clear();
    warnings_.clear();
    options.warn = [this](const std::string& warning) { warnings_.push_back(warning); };
    std::vector<Request> requests;
    Result<RequestTrace> trace = RequestTrace::open(write(name, text), options);
    if (!trace) {
      note(trace.error());
      return requests;
    }
    Request request;
    for (;;) {
      const Result<bool> more = trace->next(request);
      if (!more) note(more.error());
      if (!more || !*more) break;
      requests.push_back(request);
    }
    format_ = trace->properties().format;
    return requests;
  }

  void expect_error(const std::string& name, const std::string& text, const std::string& expected,
                    const RequestTraceOptions& options = {.default_block_tokens = 512}) {
    read(name, text, options);
    EXPECT_EQ(error_.substr(0, expected.size()), expected) << text;
  }

  std::string error_;
  std::vector<std::string> warnings_;
  TraceFormat format_ = TraceFormat::kAuto;

 private:
  void note(const Error& error) {
    error_ = error.message;
    const std::string folder = folder_.path() + "/";
    if (error_.starts_with(folder)) error_.erase(0, folder.size());
  }
};

std::string changed(std::string_view text, std::string_view what, std::string_view to) {
  std::string copy(text);
  const std::size_t at = copy.rfind(what);
  EXPECT_NE(at, std::string::npos) << what;
  if (at != std::string::npos) copy.replace(at, what.size(), to);
  return copy;
}

constexpr std::string_view kMooncake =
    R"({"timestamp":1,"input_length":5,"output_length":2,"hash_ids":[3]})"
    "\n";

constexpr std::string_view kBailian =
    R"({"chat_id":1,"parent_chat_id":-1,"timestamp":1.5,"input_length":32,"output_length":4,"turn":1,"hash_ids":[7,8]})"
    "\n"
    R"({"chat_id":2,"parent_chat_id":1,"timestamp":2,"input_length":40,"output_length":4,"turn":2,"hash_ids":[7,9,8]})"
    "\n";

TEST_F(TraceDialects, IdsOfBailianAreNumberedByTheirPrefixes) {
  const std::vector<Request> requests = read("a.jsonl", kBailian);
  ASSERT_EQ(requests.size(), 2u) << error_;
  EXPECT_EQ(format_, TraceFormat::kBailian);
  EXPECT_EQ(requests[0].timestamp_ms, 1500);
  EXPECT_EQ(requests[0].hash_ids, (Ids{0, 1}));
  EXPECT_EQ(requests[1].hash_ids, (Ids{0, 2, 3}));  // 8 below 9 is another block than 8 below 7
}

TEST_F(TraceDialects, BailianMayHaveLargerBlocksWhereTheUserSaysSo) {
  const std::string text = changed(changed(kBailian, ":32,", ":64,"), ":40,", ":90,");
  expect_error("a.jsonl", text,
               "a.jsonl:1: hash_ids: 2 ids for input_length 64, expected 4 at 16 tokens");
  const auto requests = read("a.jsonl", text, {.block_tokens = 32});
  EXPECT_EQ(requests.size(), 2u) << error_;
}

TEST_F(TraceDialects, SaysWhatIsWrongWithALineOfBailian) {
  expect_error("a.jsonl", changed(kBailian, "\"chat_id\":2,", ""), "a.jsonl:2: chat_id: missing");
  expect_error("a.jsonl", changed(kBailian, "2,\"parent", "-2,\"parent"),
               "a.jsonl:2: chat_id: -2 is");
  expect_error("a.jsonl", changed(kBailian, ":2,\"input", ":-2,\"input"),
               "a.jsonl:2: timestamp: -2 is negative");
  expect_error("a.jsonl", changed(kBailian, ",9,", ",\"9\","),
               "a.jsonl:2: hash_ids[1]: \"9\" is not");
  expect_error("a.jsonl", changed(kBailian, ",\"output_length\":4", ""),
               "a.jsonl:2: output_length: missing");
  expect_error("a.jsonl", std::string(kMooncake), "a.jsonl:1: chat_id: missing",
               {.format = TraceFormat::kBailian});
}

TEST_F(TraceDialects, AnotherDialectInTheMiddleOfMooncakesIsAnError) {
  for (const char* field : {"chat_id", "session_id", "delay"}) {
    const std::string line =
        changed(kMooncake, "\"hash_ids\"", "\"" + std::string(field) + "\":1,\"hash_ids\"");
    const std::string text = std::string(kMooncake) + line;
    expect_error("a.jsonl", text,
                 "a.jsonl:2: " + std::string(field) + ": unknown in the lines before");
    EXPECT_EQ(read("a.jsonl", text, {.format = TraceFormat::kMooncake}).size(), 2u) << error_;
  }
}

constexpr std::string_view kBurst =
    "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\r\n"
    "5,ChatGPT,472,18,490,Conversation log\r\n"
    "45.5,GPT-4,0,0,0,API log\r\n";
constexpr std::string_view kBurst8 =
    "Timestamp,Session ID,Elapsed time,Model,Request tokens,Response tokens,Total tokens,Log Type\n"
    "118,,4.02,GPT-4,417,276,693,API log\n";

TEST_F(TraceDialects, BurstGptHasSixColumnsOrEight) {
  std::vector<Request> requests = read("a.csv", kBurst);
  ASSERT_EQ(requests.size(), 2u) << error_;
  EXPECT_EQ(format_, TraceFormat::kBurstGpt);
  EXPECT_EQ(requests[0].timestamp_ms, 5000);
  EXPECT_EQ(requests[0].input_tokens, 472u);
  EXPECT_EQ(requests[1].timestamp_ms, 45500);
  requests = read("a.csv", kBurst8);
  ASSERT_EQ(requests.size(), 1u) << error_;
  EXPECT_EQ(requests[0].input_tokens, 417u);
  EXPECT_EQ(requests[0].output_tokens, 276u);
}

TEST_F(TraceDialects, SaysWhatIsWrongWithALineOfBurstGpt) {
  expect_error("a.csv", changed(kBurst, ",API log", ""),
               "a.csv:3: \"45.5,GPT-4,0,0,0\" is not 6 fields");
  expect_error("a.csv", changed(kBurst8, ",API log", ",API,log"),
               "a.csv:2: \"118,,4.02,GPT-4,417,276,693,API,log\" is not 8 fields");
  expect_error("a.csv", changed(kBurst, "490", "491"),
               "a.csv:2: Total tokens: 491, expected the sum of 472 and 18");
  expect_error("a.csv", changed(kBurst, "18", "18446744073709551616"),
               "a.csv:2: Response tokens: \"184");
  expect_error("a.csv", changed(kBurst, "45.5", "-1"),
               "a.csv:3: Timestamp: \"-1\" is not a number of seconds");
  expect_error("a.csv", changed(kBurst, "45.5", "nan"),
               "a.csv:3: Timestamp: \"nan\" is not a number of seconds");
  expect_error("a.csv", "Timestamp,Model,Tokens\n1,a,2\n",
               "a.csv:1: header: \"Timestamp,Model,Tokens\", expected the");
  expect_error("a.csv", "5,ChatGPT,472,18,490,log\n",
               "a.csv:1: header: \"5,ChatGPT,472,18,490,log\", expected the",
               {.format = TraceFormat::kBurstGpt});
}

TEST_F(TraceDialects, ACsvIsToldFromJson) {
  const std::string expected =
      "a.csv:1: not valid JSON but, it seems, CSV: \"time,tokens\", expected a JSON object";
  expect_error("a.csv", "time,tokens\n1,2\n", expected);
  for (const TraceFormat format :
       {TraceFormat::kMooncake, TraceFormat::kDynamo, TraceFormat::kBailian, TraceFormat::kTair,
        TraceFormat::kAiperf}) {
    expect_error("a.csv", "time,tokens\n1,2\n", expected,
                 {.format = format, .default_block_tokens = 512});
  }
}

constexpr std::string_view kTair =
    R"({"instance_id":"i","trace_id":"a","timestamp_us":1500,"keys":[-1],"query_type":"prefix_match","block_mask":[],"input_len":16,"output_len":3,"total_keys":[-1]})"
    "\n"
    R"({"instance_id":"i","trace_id":"b","timestamp_us":2500,"keys":[-1,5],"query_type":"prefix_match","block_mask":[],"input_len":32,"output_len":0,"total_keys":[-1,5]})"
    "\n";

TEST_F(TraceDialects, ReadsTurnsOfTair) {
  const std::vector<Request> requests = read("a.jsonl", kTair, {.block_tokens = 16});
  ASSERT_EQ(requests.size(), 2u) << error_;
  EXPECT_EQ(format_, TraceFormat::kTair);
  EXPECT_EQ(requests[0].timestamp_ms, 1.5);
  EXPECT_EQ(requests[0].output_tokens, 3u);
  EXPECT_EQ(requests[1].hash_ids, (Ids{~std::uint64_t{0}, 5}));
}

TEST_F(TraceDialects, SaysWhatIsWrongWithALineOfTair) {
  const RequestTraceOptions options = {.block_tokens = 16};
  const auto expect = [&](std::string_view what, std::string_view to, const std::string& error) {
    expect_error("a.jsonl", changed(kTair, what, to), "a.jsonl:2: " + error, options);
  };
  expect("\"timestamp_us\":2500,", "", "timestamp_us: missing");
  expect("2500", "2.5", "timestamp_us: 2.5 is not an unsigned 64-bit integer");
  expect("\"input_len\":32,", "", "input_len: missing, expected lines of whole turns");
  expect("\"output_len\":0,", "", "output_len: missing");
  expect("\"keys\":[-1,5],", "", "keys: missing");
  expect("\"keys\":[-1,5]", "\"keys\":5", "keys: 5 is not an array");
  expect("\"keys\":[-1,5]", "\"keys\":[-1,\"5\"]", "keys[1]: \"5\" is not a 64-bit integer");
  expect("\"keys\":[-1,5]", "\"keys\":[-1]",
         "keys: 1 ids for input_len 32, expected 2 at 16 tokens");
  expect("\"instance_id\":\"i\"", "\"instance_id\":\"j\"",
         "instance_id: \"j\", expected \"i\" as before");
}

TEST_F(TraceDialects, AnArrayIsReadWhateverItsElementsAre) {
  std::string lines(kBailian);
  lines.replace(lines.find('\n'), 1, ",");
  EXPECT_EQ(read("a.json", "[" + lines + "]").size(), 2u) << error_;
  EXPECT_EQ(format_, TraceFormat::kBailian);
  expect_error("a.json", "[" + changed(lines, "[7,9,8]", "[7,-9,8]") + "]",
               "a.json: element 2: hash_ids[1]: -9 is not an unsigned 64-bit integer");
  expect_error("a.json", "[" + lines, "a.json: the array does not end");
  expect_error("a.json", "[]", "a.json: no request in it");
  expect_error("a.json", "[1, 2]", "a.json: element 1: 1 is not an object");
}

std::string turn(const std::string& session, const std::string& time, std::uint64_t input,
                 const std::string& ids, std::uint64_t output = 10) {
  return R"({"session_id":")" + session + "\"," + time +
         ",\"input_length\":" + std::to_string(input) +
         ",\"output_length\":" + std::to_string(output) + ",\"hash_ids\":[" + ids + "]}\n";
}
const RequestTraceOptions kTens = {.block_tokens = 10};

TEST_F(TraceDialects, AnIncrementBecomesAWholePrompt) {
  const std::vector<Request> requests =
      read("a.jsonl",
           turn("s", "\"timestamp\":5", 15, "1,2", 7) + turn("s", "\"delay\":100", 9, "3", 9) +
               turn("t", "\"timestamp\":6", 15, "1,4") + turn("s", "\"delay\":0.5", 0, "", 1),
           kTens);
  ASSERT_EQ(requests.size(), 4u) << error_;
  const std::uint64_t made = std::uint64_t{1} << 63;
  EXPECT_EQ(requests[0].hash_ids, (Ids{1, 2}));
  EXPECT_EQ(requests[1].hash_ids, (Ids{1, 4}));
  EXPECT_EQ(requests[2].timestamp_ms, 105);
  EXPECT_EQ(requests[2].input_tokens, 31u);  // 15 + 7 + 9
  EXPECT_EQ(requests[2].output_tokens, 9u);
  EXPECT_EQ(requests[2].hash_ids, (Ids{1, made, made + 1, made + 2}));
  EXPECT_EQ(requests[3].timestamp_ms, 105.5);
  EXPECT_EQ(requests[3].input_tokens, 40u);
  EXPECT_EQ(requests[3].hash_ids, (Ids{1, made, made + 1, made + 3}));
  ASSERT_EQ(warnings_.size(), 1u);
  EXPECT_NE(warnings_[0].find("does not say how long answers took"), std::string::npos);
}

TEST_F(TraceDialects, WholePromptsAndIncrementsAreToldApartOrRefused) {
  const std::string first = turn("s", "\"timestamp\":5", 15, "1,2");
  const std::string whole = turn("s", "\"delay\":9", 25, "1,2,3");
  const std::string more = turn("s", "\"delay\":9", 25, "7,8,9");
  EXPECT_EQ(read("a.jsonl", first + whole, kTens).at(1).hash_ids, (Ids{1, 2, 3})) << error_;
  EXPECT_EQ(read("a.jsonl", first + more, kTens).at(1).input_tokens, 50u) << error_;
  expect_error("a.jsonl", first + whole + more,
               "a.jsonl: of its later turns 1 begin with the first hash_id of their session and 1 "
               "do not, expected "
               "--trace-format aiperf",
               kTens);
  expect_error("a.jsonl", first + turn("s", "\"delay\":9", 5, ""),
               "a.jsonl: of its later turns 0 begin", kTens);
  const auto named =
      read("a.jsonl", first + whole, {.block_tokens = 10, .format = TraceFormat::kAiperf});
  EXPECT_EQ(named.at(1).input_tokens, 50u) << error_;
  // Without a later turn there is nothing to tell.
  EXPECT_EQ(read("a.jsonl", first + turn("t", "\"timestamp\":6", 15, "1,2"), kTens).size(), 2u)
      << error_;
}

TEST_F(TraceDialects, SaysWhatIsWrongWithATurn) {
  const std::string first = turn("s", "\"timestamp\":5", 15, "1,2");
  const auto expect = [&](const std::string& line, const std::string& error) {
    expect_error("a.jsonl", first + line, "a.jsonl:2: " + error, kTens);
    EXPECT_EQ(read("a.jsonl", first + line, {.block_tokens = 10, .skip_bad_lines = true}).size(),
              1u)
        << error_;
  };
  expect(turn("t", "\"delay\":5", 15, "1,2"),
         "timestamp: missing in the first turn of session \"t\"");
  expect(turn("s", "\"turn\":5", 15, "7,2"), "timestamp: missing, expected timestamp or delay");
  expect(turn("s", "\"delay\":-5", 15, "7,2"), "delay: -5 is negative");
  expect(turn("s", "\"timestamp\":4", 15, "7,2"),
         "timestamp: 4.000, expected at least the 5.000 of the turn before");
  expect(turn("s", "\"delay\":5", 15,
              "7"
              ",8,9"),
         "hash_ids: 3 ids for input_length 15, expected 1 or 2 at 10");
  expect(changed(turn("s", "\"delay\":5", 15, "7,8"), "\"s\"", "null"),
         "session_id: null is neither a text nor");
  const std::string endless = turn("s", "\"delay\":5", 5, "7", ~std::uint64_t{0});
  expect(endless, "input_length: 5 more tokens of the session, expected at most 2^24 blocks of 10");
  expect_error("a.jsonl", first + turn("s", "\"delay\":5", 15, "7,9223372036854775808"),
               "a.jsonl: hash_ids of 2^63 and more", kTens);
  expect_error("a.jsonl", first, "a.jsonl: sessions need a number of tokens a block", {});
}

TEST_F(TraceDialects, SecondsThatAreTakenForMillisecondsAreDoubtedOnce) {
  const auto at = [](const char* time) {
    return changed(kMooncake, ":1,", ":" + std::string(time) + ",");
  };
  read("a.jsonl", at("0.0") + at("1.5") + at("2.25"));
  ASSERT_EQ(warnings_.size(), 1u);
  EXPECT_EQ(
      warnings_[0].substr(warnings_[0].find("timestamp")),
      "timestamp: the times are read as milliseconds, which means 889 requests a second; give "
      "--time-unit s if they are seconds, --time-unit ms if they are milliseconds");
  const auto seconds = read("a.jsonl", at("0.0") + at("1.5"), {.time_unit_ms = 1000});
  EXPECT_EQ(seconds.at(1).timestamp_ms, 1500);
  EXPECT_TRUE(warnings_.empty());
  read("a.jsonl", at("0.0") + at("1.5"), {.time_unit_ms = 1});
  EXPECT_TRUE(warnings_.empty());
  read("a.jsonl", at("0.5") + at("900") + at("1800"));  // as other programs write milliseconds
  EXPECT_TRUE(warnings_.empty());
  read("a.jsonl", at("0") + at("1") + at("2"));  // too few
  EXPECT_TRUE(warnings_.empty());
  const auto whole = [&](double gap) {
    std::string lines;
    for (int i = 0; i < 10; ++i) lines += at(std::to_string(static_cast<int>(i * gap)).c_str());
    read("a.jsonl", lines);
    return warnings_.size();
  };
  EXPECT_EQ(whole(0.5), 1u);
  EXPECT_EQ(whole(1), 0u);
  EXPECT_EQ(whole(0), 0u);
  expect_error("a.jsonl", std::string(kBailian),
               "a.jsonl: given a unit of time, expected none: the format bailian",
               {.time_unit_ms = 1000});
  std::string many;
  for (int i = 0; i < 3000; ++i) many += at(std::to_string(i * 0.25).c_str());
  read("a.jsonl", many);
  EXPECT_EQ(warnings_.size(), 1u);
}

TEST_F(TraceDialects, AFormatThatIsToldLateIsKnownBeforeTheFirstRequest) {
  // What is looked at for the format is 64 KiB.
  const std::string prefix = std::string(70'000, 'x') + "\n";
  const RequestTraceOptions options = {.skip_bad_lines = true, .default_block_tokens = 512};
  const Result<RequestTrace> blocks =
      RequestTrace::open(write("late.jsonl", prefix + std::string(kBailian)), options);
  ASSERT_TRUE(blocks) << blocks.error().message;
  EXPECT_EQ(blocks->block_tokens(), 16u);
  const Result<RequestTrace> none =
      RequestTrace::open(write("late.csv", prefix + "TIMESTAMP,ContextTokens,GeneratedTokens\n"
                                                    "2023-11-16 18:15:46,4808,10\n"),
                         options);
  ASSERT_TRUE(none) << none.error().message;
  EXPECT_FALSE(none->require_ids());
}

TEST_F(TraceDialects, SecondsThatAreNoNumberOfMillisecondsAreAnError) {
  const std::string far = changed(kBailian, R"("timestamp":2,)", R"("timestamp":1e308,)");
  expect_error("b.jsonl", far, "b.jsonl: request 2: a time of more than 1.7e308 ms");
  const std::string unit = changed(kMooncake, R"("timestamp":1,)", R"("timestamp":1e308,)");
  expect_error("m.jsonl", unit, "m.jsonl: request 1: a time of more than 1.7e308 ms",
               {.default_block_tokens = 512, .time_unit_ms = 1000});
}

TEST_F(TraceDialects, WholePromptsOfASessionDoNotAddUp) {
  // Blocks of 2^62 tokens: the three prompts together would have more tokens than 64 bits count.
  std::string turns;
  for (const char* const time : {"0", "1", "2"}) {
    turns += R"({"session_id":"a","timestamp":)" + std::string(time) +
             R"(,"input_length":6900000000000000000,"output_length":0,"hash_ids":[1]})" + "\n";
  }
  const RequestTraceOptions options = {.default_block_tokens = std::uint64_t{1} << 62};
  EXPECT_EQ(read("whole.jsonl", turns, options).size(), 3u) << error_;
  EXPECT_EQ(error_, "");
  RequestTraceOptions named = options;
  named.format = TraceFormat::kAiperf;
  expect_error("new.jsonl", turns, "new.jsonl:3: input_length: ", named);
}

}  // namespace
}  // namespace cachalot::trace
