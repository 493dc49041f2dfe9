#include "trace/request/trace_writer.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "testing/trace/test_files.h"
#include "trace/request/request_trace.h"
#include "trace/request/trace_merge.h"

namespace cachalot::trace {
namespace {

using Ids = std::vector<std::uint64_t>;
constexpr std::uint64_t kMost = ~std::uint64_t{0};

class TraceWriterTest : public TestFiles {
 protected:
  static std::string content(const std::string& file) {
    std::ifstream in(file, std::ios::binary);
    return {std::istreambuf_iterator<char>(in), {}};
  }
  std::size_t files() const {
    return static_cast<std::size_t>(
        std::distance(std::filesystem::directory_iterator(folder_.path()), {}));
  }
  RequestTrace open(const std::string& file, std::uint64_t block_tokens) const {
    return *RequestTrace::open(file, {.default_block_tokens = block_tokens});
  }
  static std::vector<Request> all(TraceMerge& merge) {
    std::vector<Request> requests;
    Request request;
    while (*merge.next(request)) requests.push_back(request);
    return requests;
  }
};

TEST_F(TraceWriterTest, WritesMooncakesLines) {
  TraceWriter writer = *TraceWriter::open(path("a"));
  EXPECT_TRUE(writer.write({27482, 6955, 52, {46, kMost}}));
  EXPECT_TRUE(writer.write({0.25, 0, 0, {}}));
  EXPECT_FALSE(std::filesystem::exists(path("a")));
  EXPECT_TRUE(writer.finish());
  EXPECT_EQ(content(path("a")),
            "{\"timestamp\": 27482, \"input_length\": 6955, \"output_length\": 52, \"hash_ids\": "
            "[46, 18446744073709551615]}\n"
            "{\"timestamp\": 0.25, \"input_length\": 0, \"output_length\": 0, \"hash_ids\": []}\n");
  EXPECT_EQ(writer.requests(), 2u);
  EXPECT_EQ(writer.blocks(), 2u);
}

TEST_F(TraceWriterTest, WhatIsNotFinishedLeavesTheOldFileAndNothingElse) {
  write("a", "old");
  {
    TraceWriter writer = *TraceWriter::open(path("a"));
    EXPECT_TRUE(writer.write({1, 2, 3, {4}}));
  }
  EXPECT_EQ(content(path("a")), "old");
  EXPECT_EQ(files(), 1u);
}

TEST_F(TraceWriterTest, RefusesAFolderAndAFileInNoFolder) {
  EXPECT_EQ(TraceWriter::open(path("")).error().code, Code::kInvalidArgument);
  EXPECT_EQ(TraceWriter::open(path("none/a")).error().code, Code::kInvalidArgument);
}

RC_GTEST_FIXTURE_PROP(TraceWriterTest, WhatIsWrittenIsReadAgain,
                      (std::vector<std::uint64_t> ids, std::uint64_t input, std::uint32_t time)) {
  const std::string file = path(*rc::gen::element<std::string>("a", "a.gz"));
  TraceWriter writer = *TraceWriter::open(file);
  const double time_ms = time / 1024.0;
  RC_ASSERT(writer.write({time_ms, input, 7, ids}).ok());
  RC_ASSERT(writer.finish().ok());
  RequestTrace trace = open(file, 0);
  Request request;
  RC_ASSERT(*trace.next(request));
  RC_ASSERT(request.timestamp_ms == time_ms);
  RC_ASSERT(request.input_tokens == input);
  RC_ASSERT(request.output_tokens == 7u);
  RC_ASSERT(request.hash_ids == ids);
}

std::string session(const std::string& requests) {
  return R"({"block_size": 64, "hash_id_scope": "local", "requests": [)" + requests + "]}";
}
constexpr const char* kFirst = R"({"t": 0, "in": 192, "out": 1, "hash_ids": [1, 2, 3]},
  {"t": 2, "in": 320, "out": 1, "hash_ids": [1, 2, 3, 4, 5]})";
constexpr const char* kSecond = R"({"t": 1, "in": 128, "out": 1, "hash_ids": [1, 2]})";

TEST_F(TraceWriterTest, LocalIdsOfTwoTracesBecomeDifferent) {
  std::vector<RequestTrace> traces;
  traces.push_back(open(write("a", session(kFirst)), 0));
  traces.push_back(open(write("b", session(kSecond)), 0));
  Result<TraceMerge> merge = TraceMerge::make(std::move(traces), {});
  ASSERT_TRUE(merge) << merge.error().message;
  EXPECT_TRUE(merge->renumbers());
  const std::vector<Request> requests = all(*merge);
  ASSERT_EQ(requests.size(), 3u);
  EXPECT_EQ(requests[0].hash_ids, (Ids{0, 1, 2}));
  EXPECT_EQ(requests[1].hash_ids, (Ids{3, 4}));
  EXPECT_EQ(requests[2].hash_ids, (Ids{0, 1, 2, 5, 6}));
}

TEST_F(TraceWriterTest, GlobalIdsAndThoseOfOneTraceStay) {
  std::vector<RequestTrace> one;
  one.push_back(open(write("a", session(kFirst)), 0));
  Result<TraceMerge> alone = TraceMerge::make(std::move(one), {});
  EXPECT_EQ(all(*alone)[1].hash_ids, (Ids{1, 2, 3, 4, 5}));
  std::vector<RequestTrace> two;
  for (const char* name : {"b", "c"}) {
    two.push_back(open(write(name, R"({"timestamp":1,"input_length":64,"output_length":1,)"
                                   R"("hash_ids":[77]})"),
                       64));
  }
  Result<TraceMerge> both = TraceMerge::make(std::move(two), {});
  const std::vector<Request> requests = all(*both);
  ASSERT_EQ(requests.size(), 2u);
  EXPECT_EQ(requests[0].hash_ids, (Ids{77}));
  EXPECT_EQ(requests[1].hash_ids, (Ids{77}));
}

TEST_F(TraceWriterTest, ALargerBlockHasTheIdOfItsLastSmallOne) {
  std::vector<RequestTrace> traces;
  traces.push_back(open(write("a", session(kFirst)), 0));
  Result<TraceMerge> merge = TraceMerge::make(std::move(traces), {.block_tokens = 128});
  ASSERT_TRUE(merge);
  EXPECT_EQ(merge->block_tokens(), 128u);
  const std::vector<Request> requests = all(*merge);
  EXPECT_EQ(requests[0].hash_ids, (Ids{2, 3}));
  EXPECT_EQ(requests[1].hash_ids, (Ids{2, 4, 5}));
}

TEST_F(TraceWriterTest, BlockSizesThatDoNotFitAreRefused) {
  std::vector<RequestTrace> one;
  one.push_back(open(write("a", session(kFirst)), 0));
  const auto refused = TraceMerge::make(std::move(one), {.block_tokens = 96});
  ASSERT_FALSE(refused);
  EXPECT_STREQ(refused.error().message,
               "block tokens: 96 for trace 1 of 64 tokens a block, expected a multiple");
  std::vector<RequestTrace> two;
  two.push_back(open(write("a", session(kFirst)), 0));
  two.push_back(open(write("b", R"({"timestamp":1,"input_length":64,"output_length":1,)"
                                R"("hash_ids":[77]})"),
                     512));
  EXPECT_FALSE(TraceMerge::make(std::move(two), {}));
}

}  // namespace
}  // namespace cachalot::trace
