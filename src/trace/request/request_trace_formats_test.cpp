// The formats behind RequestTrace that are not Mooncake's, and how a file tells which it has.
#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "testing/trace/test_files.h"
#include "trace/request/request_trace.h"

namespace cachalot::trace {
namespace {

using Ids = std::vector<std::uint64_t>;

class TraceFormats : public TestFiles {
 protected:
  struct Content {
    std::vector<Request> requests;
    TraceProperties properties;
    std::uint64_t block_tokens = 0, unsorted = 0, skipped = 0;
    bool has_ids = false, ids_are_local = false;
    std::string error;  // without the folder
    Code code = Code::kInternal;
  };

  Content read(const std::string& name, std::string_view text,
               const RequestTraceOptions& options = {}) const {
    return read_file(write(name, text), options);
  }

  Content read_file(const std::string& file, const RequestTraceOptions& options = {}) const {
    Content content;
    const auto fail = [&](const Error& error) {
      content.code = error.code;
      content.error = error.message;
      const std::string folder = folder_.path() + "/";
      if (content.error.starts_with(folder)) content.error.erase(0, folder.size());
    };
    Result<RequestTrace> trace = RequestTrace::open(file, options);
    if (!trace) {
      fail(trace.error());
      return content;
    }
    content.block_tokens = trace->block_tokens();
    Request request;
    for (;;) {
      const Result<bool> more = trace->next(request);
      if (!more) fail(more.error());
      if (!more || !*more) break;
      content.requests.push_back(request);
    }
    content.properties = trace->properties();
    content.unsorted = trace->unsorted_requests();
    content.skipped = trace->skipped_lines();
    content.has_ids = trace->has_ids();
    content.ids_are_local = trace->ids_are_local();
    return content;
  }
};

constexpr const char* kSession = R"({"id": "s", "block_size": 64, "hash_id_scope": "local",
 "requests": [
  {"t": 0.0, "type": "n", "in": 130, "out": 5, "hash_ids": [1, 2]},
  {"t": 10.5, "type": "subagent", "duration_ms": 8500, "requests": [
     {"t": 0.0, "type": "n", "in": 64, "out": 1, "hash_ids": [7]},
     {"t": 6.0, "type": "s", "in": 129, "out": 2, "hash_ids": [7, 8, 9]}]},
  {"t": 5.0, "type": "s", "in": 192, "out": 6, "hash_ids": [1, 2, 3]}]})";

TEST_F(TraceFormats, AWekaSubAgentBeginsAtItsCompletionLessItsDuration) {
  const Content session = read("a.json", kSession);
  EXPECT_EQ(session.error, "");
  EXPECT_EQ(session.properties.format, TraceFormat::kWeka);
  EXPECT_EQ(session.block_tokens, 64u);
  EXPECT_TRUE(session.ids_are_local);
  ASSERT_EQ(session.requests.size(), 4u);
  const double times[] = {0, 2000, 5000, 8000};
  const Ids ids[] = {{1, 2}, {7}, {1, 2, 3}, {7, 8, 9}};
  for (std::size_t i = 0; i < 4; ++i) {
    EXPECT_EQ(session.requests[i].timestamp_ms, times[i]);
    EXPECT_EQ(session.requests[i].hash_ids, ids[i]);
  }
  EXPECT_EQ(session.requests[0].input_tokens, 130u);
  EXPECT_EQ(session.requests[0].output_tokens, 5u);
  EXPECT_EQ(session.unsorted, 0u);
}

TEST_F(TraceFormats, AWekaSessionIsReadFromOneLineAndFromGzip) {
  std::string line = kSession;
  std::erase(line, '\n');
  EXPECT_EQ(read("a.json", line).requests.size(), 4u);
  EXPECT_EQ(read("a.gz", gzip(kSession)).requests.size(), 4u);
}

TEST_F(TraceFormats, ABrokenWekaRequestIsNamedByItsPlaceOrSkipped) {
  std::string text = kSession;
  text.replace(text.find("[7, 8, 9]"), 9, "[7, -8, 9]");
  EXPECT_EQ(read("a.json", text).error,
            "a.json: requests[1].requests[1].hash_ids[1]: -8 is not an unsigned 64-bit integer");
  const Content skipped = read("a.json", text, {.skip_bad_lines = true});
  EXPECT_EQ(skipped.requests.size(), 3u);
  EXPECT_EQ(skipped.skipped, 1u);
}

TEST_F(TraceFormats, SaysWhatIsWrongWithAWekaSession) {
  const std::pair<const char*, const char*> cases[] = {
      {R"({"requests":[]})", "block_size: missing"},
      {R"({"block_size":0,"requests":[]})", "block_size: 0, expected at least 1 token"},
      {R"({"block_size":64,"requests":7})", "requests: 7 is not an array"},
      {R"({"block_size":64,"block_size":64,"requests":[]})", "block_size: stands there twice"},
      {R"({"block_size":64,"requests":[7]})", "requests[0]: 7 is not an object"},
      {R"({"block_size":64,"requests":[]})", ""},
      {R"({"block_size":64,"hash_id_scope":"planet","requests":[]})",
       "hash_id_scope: \"planet\", expected \"local\" or \"global\""},
      {R"({"block_size":64,"requests":[{"t":-1,"in":5,"out":1,"hash_ids":[]}]})",
       "requests[0].t: -1 is negative"},
      {R"({"block_size":64,"requests":[{"t":1,"in":5,"out":1,"hash_ids":[1,2]}]})",
       "requests[0].hash_ids: 2 ids for in 5, expected 0 or 1 at 64 tokens a block"},
      {R"({"block_size":64,"requests":[{"t":1,"t":1,"in":5,"out":1,"hash_ids":[]}]})",
       "requests[0].t: stands there twice"},
      {R"({"block_size":64,"requests":[{"t":1,"type":"subagent","requests":[]}]})",
       "requests[0].duration_ms: missing"},
      {R"({"block_size":18446744073709551616,"requests":[]})", "not valid JSON:"},
      {R"({"block_size":64,"requests":[)", "not valid JSON:"},
  };
  for (const auto& [text, expected] : cases) {
    const std::string said = read("a.json", text).error;
    const std::string whole = *expected == 0 ? "a.json: no request in it (0 bad lines were skipped)"
                                             : std::string("a.json: ") + expected;
    EXPECT_EQ(said.substr(0, whole.size()), whole) << text;
  }
}

constexpr const char* kAzure =
    "TIMESTAMP,ContextTokens,GeneratedTokens\r\n"
    "2023-11-16 18:17:03.9799600,4808,10\r\n"
    "2023-11-16 18:17:04.0319600,3180,8\r\n"
    "2024-05-10 00:00:00.009930+00:00,2162,5\r\n"
    "2024-02-29 00:00:00,1,0";

TEST_F(TraceFormats, ReadsArrivalsAndLengthsOfAzure) {
  const Content trace = read("a.csv", kAzure, {.default_block_tokens = 512});
  EXPECT_EQ(trace.error, "");
  EXPECT_EQ(trace.properties.format, TraceFormat::kAzure);
  EXPECT_FALSE(trace.has_ids);
  ASSERT_EQ(trace.requests.size(), 4u);
  EXPECT_NEAR(trace.requests[0].timestamp_ms, 1700158623979.96, 0.001);
  EXPECT_NEAR(trace.requests[1].timestamp_ms - trace.requests[0].timestamp_ms, 52, 0.001);
  EXPECT_NEAR(trace.requests[2].timestamp_ms, 1715299200009.93, 0.001);
  EXPECT_EQ(trace.requests[3].timestamp_ms, 1709164800000.0);
  EXPECT_EQ(trace.requests[0].input_tokens, 4808u);
  EXPECT_EQ(trace.requests[1].output_tokens, 8u);
  EXPECT_TRUE(trace.requests[0].hash_ids.empty());
  EXPECT_EQ(trace.unsorted, 1u);
}

TEST_F(TraceFormats, SaysWhatIsWrongWithALineOfAzure) {
  const std::pair<const char*, const char*> cases[] = {
      {"2023-11-16 18:17:03,4808", "\"2023-11-16 18:17:03,4808\" is not three fields"},
      {"2023-11-16 18:17:03,4808,1,2", "\"2023-11-16 18:17:03,4808,1,2\" is not three fields"},
      {"2023-13-16 18:17:03,4808,1", "TIMESTAMP: \"2023-13-16 18:17:03\" is no time"},
      {"2023-02-29 18:17:03,4808,1", "TIMESTAMP: \"2023-02-29 18:17:03\" is no time"},
      {"2023-11-31 18:17:03,4808,1", "TIMESTAMP: \"2023-11-31 18:17:03\" is no time"},
      {"2023-11-16 18:17:03.,4808,1", "TIMESTAMP: \"2023-11-16 18:17:03.\" is no time"},
      {"2023-11-16 18:17:03+02:00,4808,1", "TIMESTAMP: \"2023-11-16 18:17:03+02:00\" is no time"},
      {"yesterday,4808,1", "TIMESTAMP: \"yesterday\" is no time"},
      {"2023-11-16 18:17:03,-1,1", "ContextTokens: \"-1\" is not an unsigned"},
      {"2023-11-16 18:17:03,,1", "ContextTokens: \"\" is not an unsigned"},
      {"2023-11-16 18:17:03,1,18446744073709551616",
       "GeneratedTokens: \"18446744073709551616\" is not an unsigned"},
  };
  for (const auto& [line, expected] : cases) {
    const std::string text = std::string(kAzure) + "\r\n" + line;
    const std::string whole = std::string("a.csv:6: ") + expected;
    EXPECT_EQ(read("a.csv", text).error.substr(0, whole.size()), whole);
    EXPECT_EQ(read("a.csv", text, {.skip_bad_lines = true}).skipped, 1u);
  }
  EXPECT_EQ(read("a.csv", "TIMESTAMP,Tokens\n").error,
            "a.csv:1: header: \"TIMESTAMP,Tokens\", expected "
            "TIMESTAMP,ContextTokens,GeneratedTokens");
}

TEST_F(TraceFormats, ATraceWithoutIdsSaysWhichOptionAssumesSome) {
  const Result<RequestTrace> trace = RequestTrace::open(write("a.csv", kAzure), {});
  ASSERT_TRUE(trace);
  const Status ids = trace->require_ids();
  ASSERT_FALSE(ids);
  EXPECT_EQ(ids.error().code, Code::kInvalidArgument);
  EXPECT_NE(std::string(ids.error().message).find("expected --synthetic-prefix shared=TOKENS"),
            std::string::npos);
}

constexpr const char* kDynamo =
    R"({"schema":"dynamo.request.trace.v1","event_type":"request_end","event_time_unix_ms":1777312801000,)"
    R"("request":{"request_id":"a","request_received_ms":1777312800000,"output_tokens":16,"replay":)"
    R"({"trace_block_size":64,"input_length":128,"input_sequence_hashes":[14879255164371896291,2]}}})";

TEST_F(TraceFormats, ReadsDynamosRequestsBareAndWrappedAndPassesOverOtherEvents) {
  const std::string text =
      R"({"schema":"dynamo.request.trace.v1","event_type":"tool_end","event_time_unix_ms":5,"tool":{}})"
      "\n" +
      std::string(kDynamo) + "\n" +
      R"({"schema":"dynamo.request.trace.v1","event_type":"request_payload"})" + "\n" +
      R"({"timestamp":7,"event":)" + kDynamo + "}\n";
  const Content trace = read("a.jsonl", text);
  EXPECT_EQ(trace.error, "");
  EXPECT_EQ(trace.properties.format, TraceFormat::kDynamo);
  EXPECT_EQ(trace.block_tokens, 64u);
  EXPECT_FALSE(trace.ids_are_local);
  ASSERT_EQ(trace.requests.size(), 2u);
  EXPECT_EQ(trace.requests[0].timestamp_ms, 1777312800000.0);
  EXPECT_EQ(trace.requests[0].input_tokens, 128u);
  EXPECT_EQ(trace.requests[0].output_tokens, 16u);
  EXPECT_EQ(trace.requests[0].hash_ids, (Ids{14879255164371896291u, 2}));
  EXPECT_EQ(trace.requests[1].hash_ids, trace.requests[0].hash_ids);
  EXPECT_EQ(trace.skipped, 0u);
}

TEST_F(TraceFormats, SaysWhatIsWrongWithALineOfDynamo) {
  const auto changed = [](std::string_view what, std::string_view to) {
    std::string line = kDynamo;
    line.replace(line.find(what), what.size(), to);
    return std::string(kDynamo) + "\n" + line;
  };
  const std::pair<std::string, const char*> cases[] = {
      {changed("trace.v1", "trace.v2"), "schema: \"dynamo.request.trace.v2\", expected"},
      {changed("request_end", "request_start"), "event_type: \"request_start\", expected"},
      {changed("\"request\":", "\"reply\":"), "request: missing"},
      {changed("\"replay\":", "\"again\":"), "request.replay: missing"},
      {changed("\"output_tokens\":16,", ""), "request.output_tokens: missing"},
      {changed("\"output_tokens\":16", "\"output_tokens\":-16"),
       "request.output_tokens: -16 is not an unsigned 64-bit integer"},
      {changed(":64", ":0"), "trace_block_size: 0, expected at least 1 token"},
      {changed(":64", ":65"), "trace_block_size: 65, expected 64 as in front of it"},
      {changed(",2]", ",2,3]"), "input_sequence_hashes: 3 ids for input_length 128, expected 2"},
      {changed(",2]", ",18446744073709551616]"),
       "not valid JSON: a number is malformed or needs more than 64 bits"},
      {changed(",2]", ",2"), "not valid JSON"},
  };
  for (const auto& [text, expected] : cases) {
    const std::string whole = std::string("a.jsonl:2: ") + expected;
    EXPECT_EQ(read("a.jsonl", text).error.substr(0, whole.size()), whole);
    EXPECT_EQ(read("a.jsonl", text, {.skip_bad_lines = true}).skipped, 1u);
  }
}

constexpr const char* kMooncake =
    R"({"timestamp": 1, "input_length": 5, "output_length": 2, "hash_ids": [3]})";

TEST_F(TraceFormats, AByteOrderMarkInFrontIsPassedOverWhateverTheFormat) {
  const std::string mark = "\xef\xbb\xbf";
  const std::string mooncake =
      R"({"timestamp":1,"input_length":5,"output_length":2,"hash_ids":[3]})";
  for (const std::string& text :
       {mooncake, std::string(kSession), std::string(kAzure), std::string(kDynamo)}) {
    const Content plain = read("a", text), marked = read("a", mark + text);
    EXPECT_EQ(marked.error, "") << text;
    EXPECT_EQ(marked.properties.format, plain.properties.format);
    EXPECT_EQ(marked.requests.size(), plain.requests.size());
    EXPECT_EQ(read("a", gzip(mark + text)).error, "");
    EXPECT_EQ(read("a", mark + text, {.format = plain.properties.format}).error, "");
  }
}

TEST_F(TraceFormats, MooncakeIdsMayBeSixteenHexadecimalDigits) {
  const Content trace =
      read("a.jsonl", R"({"timestamp": 1, "input_length": 5, "output_length": 2, "hash_ids": )"
                      R"(["ffffffffffffffff", "00000000000000aB", 7]})");
  ASSERT_EQ(trace.requests.size(), 1u) << trace.error;
  EXPECT_EQ(trace.requests[0].hash_ids, (Ids{~std::uint64_t{0}, 0xab, 7}));
  for (const char* id :
       {"fffffffffffffff", "fffffffffffffffg", "-fffffffffffffff", "0xffffffffffffff"}) {
    const std::string text =
        std::string(R"({"timestamp": 1, "input_length": 5, "output_length": 2, "hash_ids": [")") +
        id + "\"]}";
    EXPECT_NE(read("a.jsonl", text).error.find("is not an unsigned 64-bit integer"),
              std::string::npos)
        << id;
  }
}

TEST_F(TraceFormats, TheFirstLineThatTellsDecides) {
  const Content mooncake =
      read("a", std::string("bad\n{}\n") + kMooncake, {.skip_bad_lines = true});
  EXPECT_EQ(mooncake.properties.format, TraceFormat::kMooncake);
  EXPECT_EQ(mooncake.skipped, 2u);
  EXPECT_EQ(read("a", std::string("\n\n") + kDynamo).properties.format, TraceFormat::kDynamo);
  const std::string far_away = std::string(100000, '\n') + kAzure;
  EXPECT_EQ(read("a", far_away).properties.format, TraceFormat::kAzure);
}

TEST_F(TraceFormats, AFormatThatCannotBeToldIsAnError) {
  EXPECT_EQ(
      read("a", R"({"prompt": "x"})").error,
      "a:1: the format cannot be told from the field \"prompt\", expected the fields of one of "
      "mooncake, weka, azure, dynamo, bailian, burstgpt, aiperf, tair");
  const std::string share_gpt = R"([{"id": "a", "conversations": [{"from": "human"}]}])";
  EXPECT_NE(read("a", share_gpt).error.find("the fields \"id\", \"conversations\", expected"),
            std::string::npos);
  EXPECT_NE(read("a", "{}").error.find("an object without fields"), std::string::npos);
  EXPECT_EQ(read("a", "not JSON").error.substr(0, 19), "a:1: not valid JSON");
}

TEST_F(TraceFormats, ANamedFormatIsNotToldByContent) {
  EXPECT_EQ(read("a", kMooncake, {.format = TraceFormat::kDynamo}).error, "a:1: schema: missing");
  EXPECT_EQ(read("a", kMooncake, {.format = TraceFormat::kWeka}).error, "a: block_size: missing");
  EXPECT_EQ(read("a", kAzure, {.format = TraceFormat::kMooncake}).error.substr(0, 19),
            "a:1: not valid JSON");
  EXPECT_EQ(*parse_trace_format("weka"), TraceFormat::kWeka);
  const auto unknown = parse_trace_format("qwen");
  ASSERT_FALSE(unknown);
  EXPECT_STREQ(unknown.error().message,
               "\"qwen\" is no trace format, expected auto, mooncake, weka, azure, dynamo, "
               "bailian, burstgpt, aiperf, tair");
}

TEST_F(TraceFormats, AnotherBlockSizeThanTheTraceStatesIsAnError) {
  for (const char* text : {kSession, kDynamo}) {
    const Content trace = read("a", text, {.block_tokens = 512});
    EXPECT_EQ(trace.code, Code::kInvalidArgument);
    EXPECT_EQ(trace.error.substr(0, 50), "a: its blocks have 64 tokens, expected 512 (`cacha");
    EXPECT_EQ(read("a", text, {.block_tokens = 64}).error, "");
    EXPECT_EQ(read("a", text, {.default_block_tokens = 512}).block_tokens, 64u);
  }
  EXPECT_EQ(read("a", kMooncake, {.default_block_tokens = 512}).block_tokens, 512u);
  EXPECT_EQ(read("a", kMooncake, {.block_tokens = 256}).block_tokens, 256u);
}

TEST_F(TraceFormats, EmptyCutAndMissingFilesAreErrorsOfEveryFormat) {
  for (const TraceFormat format : {TraceFormat::kAuto, TraceFormat::kMooncake, TraceFormat::kWeka,
                                   TraceFormat::kAzure, TraceFormat::kDynamo}) {
    const RequestTraceOptions options{.format = format};
    const std::string empty = read("a", "", options).error;
    EXPECT_EQ(empty.substr(0, 3), "a: ") << trace_format_name(format);
    const std::string packed = gzip(format == TraceFormat::kWeka ? kSession : kMooncake);
    EXPECT_NE(read("a", packed.substr(0, packed.size() - 5), options)
                  .error.find("gzip data ends in the middle"),
              std::string::npos);
    EXPECT_EQ(read_file(path(""), options).code, Code::kInvalidArgument);
    EXPECT_EQ(read_file(path("none"), options).code, Code::kInvalidArgument);
  }
}

TEST_F(TraceFormats, DuplicateIdsWithinARequestAreReadAsTheyAre) {
  const Content trace = read("a", R"({"timestamp":1,"input_length":5,"output_length":2,)"
                                  R"("hash_ids":[3,3,3]})");
  EXPECT_EQ(trace.requests.at(0).hash_ids, (Ids{3, 3, 3}));
}

TEST_F(TraceFormats, TimesThatGoBackAreKeptAndCounted) {
  std::string text;
  for (const int time : {5, 3, 4, 9, 9, 1}) {
    text += R"({"timestamp":)" + std::to_string(time) +
            R"(,"input_length":5,"output_length":2,"hash_ids":[3]})" + "\n";
  }
  const Content trace = read("a", text);
  EXPECT_EQ(trace.unsorted, 2u);
  EXPECT_EQ(trace.requests.at(1).timestamp_ms, 3);
  EXPECT_EQ(trace.requests.at(5).timestamp_ms, 1);
}

}  // namespace
}  // namespace cachalot::trace
