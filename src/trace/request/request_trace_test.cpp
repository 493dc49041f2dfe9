#include "trace/request/request_trace.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <utility>

#include "testing/trace/test_files.h"
#include "trace/file/line_reader.h"

namespace cachalot::trace {
namespace {

constexpr const char* kGood =
    R"({"timestamp": 1, "input_length": 5, "output_length": 2, "hash_ids": [3]})";

class RequestTraceTest : public TestFiles {
 protected:
  RequestTrace open(const std::string& file, const RequestTraceOptions& options = {}) const {
    Result<RequestTrace> trace = RequestTrace::open(file, options);
    EXPECT_TRUE(trace) << trace.error().message;
    return *std::move(trace);
  }

  // What is said of a trace whose only line this is, without the folder; "" if nothing.
  std::string complaint(std::string_view line, const RequestTraceOptions& options = {}) const {
    RequestTrace trace = open(write("trace.jsonl", line), options);
    Request request;
    const Result<bool> more = trace.next(request);
    if (more) return "";
    EXPECT_EQ(more.error().code, Code::kBadInput);
    return std::string(more.error().message).substr(folder_.path().size() + 1);
  }
};

TEST_F(RequestTraceTest, ReadsTheFieldsInAnyOrderAndIgnoresOthers) {
  RequestTrace trace = open(write(
      "a", R"({"hash_ids":[0,18446744073709551615],"more":{"hash_ids":[-1]},"output_length":3,)"
           R"("input_length":1024,"timestamp":1.5})"));
  Request request;
  ASSERT_TRUE(*trace.next(request));
  EXPECT_EQ(request.timestamp_ms, 1.5);
  EXPECT_EQ(request.input_tokens, 1024u);
  EXPECT_EQ(request.output_tokens, 3u);
  EXPECT_EQ(request.hash_ids, (std::vector<std::uint64_t>{0, 18446744073709551615u}));
  EXPECT_FALSE(*trace.next(request));
  EXPECT_FALSE(*trace.next(request));
  EXPECT_EQ(trace.requests(), 1u);
}

TEST_F(RequestTraceTest, IgnoresEmptyLinesAndCarriageReturns) {
  RequestTrace trace = open(write("a", std::string("\n\r\n ") + kGood + "\r\n\n" + kGood));
  Request request;
  EXPECT_TRUE(*trace.next(request));
  EXPECT_TRUE(*trace.next(request));
  EXPECT_EQ(request.hash_ids.size(), 1u);
  EXPECT_FALSE(*trace.next(request));
}

TEST_F(RequestTraceTest, NamesFileLineFieldAndValue) {
  std::string text;
  for (int i = 1; i < 5000; ++i) text += std::string(kGood) + "\n";
  text += R"({"timestamp":1,"input_length":5,"output_length":2,"hash_ids":[1,2,3,-7]})";
  RequestTrace trace = open(write("trace.jsonl", text));
  Request request;
  for (int i = 1; i < 5000; ++i) ASSERT_TRUE(*trace.next(request));
  const Result<bool> bad = trace.next(request);
  ASSERT_FALSE(bad);
  EXPECT_EQ(bad.error().code, Code::kBadInput);
  EXPECT_EQ(bad.error().detail, 5000u);
  EXPECT_EQ(std::string(bad.error().message).substr(folder_.path().size()),
            "/trace.jsonl:5000: hash_ids[3]: -7 is not an unsigned 64-bit integer");
}

TEST_F(RequestTraceTest, SaysWhatIsWrongWithEachField) {
  const std::pair<const char*, const char*> cases[] = {
      {R"({"input_length":5,"output_length":2,"hash_ids":[3]})", "timestamp: missing"},
      {R"({"timestamp":1,"output_length":2,"hash_ids":[3]})", "input_length: missing"},
      {R"({"timestamp":1,"input_length":5,"hash_ids":[3]})", "output_length: missing"},
      {R"({"timestamp":1,"input_length":5,"output_length":2})", "hash_ids: missing"},
      {R"({"timestamp":-1,"input_length":5,"output_length":2,"hash_ids":[3]})",
       "timestamp: -1 is negative"},
      {R"({"timestamp":"now","input_length":5,"output_length":2,"hash_ids":[3]})",
       "timestamp: \"now\" is not a number"},
      {R"({"timestamp":1,"input_length":-5,"output_length":2,"hash_ids":[3]})",
       "input_length: -5 is not an unsigned 64-bit integer"},
      {R"({"timestamp":1,"input_length":5.5,"output_length":2,"hash_ids":[3]})",
       "input_length: 5.5 is not an unsigned 64-bit integer"},
      {R"({"timestamp":1,"input_length":5,"output_length":null,"hash_ids":[3]})",
       "output_length: null is not an unsigned 64-bit integer"},
      {R"({"timestamp":1,"input_length":5,"output_length":2,"hash_ids":{"0":3}})",
       "hash_ids: an object is not an array"},
      {R"({"timestamp":1,"input_length":5,"output_length":2,"hash_ids":[[3]]})",
       "hash_ids[0]: an array is not an unsigned 64-bit integer"},
      {R"({"timestamp":1,"input_length":5,"output_length":2,"hash_ids":["ab\u001b"]})",
       "hash_ids[0]: \"ab?\" is not an unsigned 64-bit integer"},
      {R"({"timestamp":1,"timestamp":1,"input_length":5,"output_length":2,"hash_ids":[3]})",
       "timestamp: stands there twice"},
      {"7", "7 is not an object"},
  };
  for (const auto& [line, expected] : cases) {
    EXPECT_EQ(complaint(line), std::string("trace.jsonl:1: ") + expected);
  }
}

TEST_F(RequestTraceTest, RefusesWhatIsNotOneJsonObject) {
  for (const char* line :
       {"{", "hello", R"({"timestamp": 1,})", "\xff\xfe", "{} {}", "\x1f",
        R"({"timestamp":1,"input_length":5,"output_length":2,"hash_ids":[18446744073709551616]})",
        R"({"timestamp":1e999,"input_length":5,"output_length":2,"hash_ids":[3]})"}) {
    const std::string said = complaint(line);
    EXPECT_EQ(said.substr(0, 30), "trace.jsonl:1: not valid JSON:") << said;
  }
  const std::string deep = std::string(100000, '[') + std::string(100000, ']');
  EXPECT_NE(complaint(deep).find("not valid JSON"), std::string::npos);
  EXPECT_NE(complaint(std::string("{\0}", 3)).find("not valid JSON"), std::string::npos);
}

TEST_F(RequestTraceTest, AsksForAnIdForEachWholeOrBegunBlock) {
  const auto line = [](std::uint64_t tokens, int ids) {
    std::string list;
    for (int i = 0; i < ids; ++i) list += (i > 0 ? "," : "") + std::to_string(i);
    return R"({"timestamp":1,"input_length":)" + std::to_string(tokens) +
           R"(,"output_length":2,"hash_ids":[)" + list + "]}";
  };
  const RequestTraceOptions options{.block_tokens = 512};
  EXPECT_EQ(complaint(line(1025, 2), options), "");
  EXPECT_EQ(complaint(line(1025, 3), options), "");
  EXPECT_EQ(complaint(line(1024, 2), options), "");
  EXPECT_EQ(complaint(line(0, 0), options), "");
  EXPECT_EQ(complaint(line(5, 0), options), "");
  EXPECT_EQ(
      complaint(line(1024, 3), options),
      "trace.jsonl:1: hash_ids: 3 ids for input_length 1024, expected 2 at 512 tokens a block; "
      "give --block-tokens if it has others");
  EXPECT_NE(complaint(line(1025, 1), options), "");
  EXPECT_NE(complaint(line(~std::uint64_t{0}, 4), options), "");
  EXPECT_EQ(complaint(line(1025, 7)), "");  // not asked to check
}

TEST_F(RequestTraceTest, SkipsAndCountsBadLinesWhenAskedTo) {
  const std::string text = std::string(kGood) + "\nbad\n\n{}\n" + kGood + "\n";
  RequestTrace trace = open(write("a", text), {.skip_bad_lines = true});
  Request request;
  EXPECT_TRUE(*trace.next(request));
  EXPECT_TRUE(*trace.next(request));
  EXPECT_FALSE(*trace.next(request));
  EXPECT_EQ(trace.requests(), 2u);
  EXPECT_EQ(trace.skipped_lines(), 2u);
}

TEST_F(RequestTraceTest, GoesOnBehindABadLine) {
  RequestTrace trace = open(write("a", std::string("bad\n") + kGood));
  Request request;
  EXPECT_FALSE(trace.next(request).ok());
  EXPECT_TRUE(*trace.next(request));
}

TEST_F(RequestTraceTest, ATraceWithoutARequestIsAnError) {
  EXPECT_EQ(complaint(""), "trace.jsonl: no request in it (0 bad lines were skipped)");
  EXPECT_EQ(complaint("\n\n"), "trace.jsonl: no request in it (0 bad lines were skipped)");
  EXPECT_EQ(complaint("a\nb\n", {.skip_bad_lines = true}),
            "trace.jsonl: no request in it (2 bad lines were skipped)");
}

TEST_F(RequestTraceTest, ALineThatIsTooLongIsRefusedOrSkipped) {
  const std::string file =
      write("a.gz", gzip(std::string(LineReader::kMaxLineBytes + 1, ' ') + "\n" + kGood + "\n"));
  Request request;
  const Result<bool> refused = open(file).next(request);
  ASSERT_FALSE(refused);
  EXPECT_NE(std::string(refused.error().message).find(":1: the line is longer than 64 MiB"),
            std::string::npos);
  RequestTrace trace = open(file, {.skip_bad_lines = true});
  EXPECT_TRUE(*trace.next(request));
  EXPECT_EQ(trace.skipped_lines(), 1u);
}

TEST_F(RequestTraceTest, ACutFileStaysAnErrorAndIsNeverSkipped) {
  const std::string packed = gzip(std::string(kGood) + "\n");
  RequestTrace trace =
      open(write("a.gz", packed.substr(0, packed.size() - 3)), {.skip_bad_lines = true});
  Request request;
  for (int i = 0; i < 3; ++i) {
    const Result<bool> more = trace.next(request);
    ASSERT_FALSE(more);
    EXPECT_NE(std::string(more.error().message).find("ends in the middle"), std::string::npos);
  }
}

TEST_F(RequestTraceTest, AMissingFileIsAnError) {
  const Result<RequestTrace> trace = RequestTrace::open(path("none.jsonl"), {});
  ASSERT_FALSE(trace);
  EXPECT_EQ(trace.error().code, Code::kInvalidArgument);
}

TEST(RequestTrace, ReadsTheConversationTraceWhole) {
  Result<RequestTrace> trace = RequestTrace::open(
      CACHALOT_TEST_ASSETS "/traces/conversation_trace.jsonl.gz", {.block_tokens = 512});
  ASSERT_TRUE(trace) << trace.error().message;
  Request request;
  std::uint64_t blocks = 0;
  for (;;) {
    const Result<bool> more = trace->next(request);
    ASSERT_TRUE(more) << more.error().message;
    if (!*more) break;
    blocks += request.hash_ids.size();
  }
  EXPECT_EQ(trace->requests(), 12031u);
  EXPECT_EQ(blocks, 288500u);
}

// Whatever one byte of a line becomes, the reader answers with a request or an error of that line.
RC_GTEST_FIXTURE_PROP(RequestTraceTest, SurvivesAnyDamageOfALine, (char byte)) {
  std::string line = kGood;
  line[*rc::gen::inRange<std::size_t>(0, line.size())] = byte;
  RequestTrace trace = open(write("a", line + "\n" + kGood + "\n"));
  Request request;
  std::uint64_t errors = 0;
  for (Result<bool> more = trace.next(request); !more || *more; more = trace.next(request)) {
    errors += more ? 0 : 1;
    RC_ASSERT(errors + trace.requests() <= 3u);
  }
  RC_ASSERT(trace.requests() >= 1u);
}

}  // namespace
}  // namespace cachalot::trace
