// Runs as the clients of vLLM's, SGLang's and AIPerf's benchmarks write them.
#include <gtest/gtest.h>

#include <string>

#include "testing/os/scratch_folder.h"
#include "trace/run/recorded_run.h"

namespace cachalot::trace {
namespace {

class ClientRunTest : public ::testing::Test {
 protected:
  Result<RecordedRun> read(const std::string& text) {
    return read_recorded_run(folder_.write("r.json", text));
  }
  std::string problem_of(const std::string& text) {
    const Result<RecordedRun> run = read(text);
    if (run) return "none";
    EXPECT_EQ(run.error().code, Code::kBadInput);
    const std::string message = run.error().message;
    return message.substr(message.find("r.json") + 6);
  }
  os::ScratchFolder folder_;
};

std::string changed(std::string text, const std::string& what, const std::string& to) {
  const std::size_t at = text.find(what);
  EXPECT_NE(at, std::string::npos) << what;
  if (at != std::string::npos) text.replace(at, what.size(), to);
  return text;
}

const std::string kVllm =
    R"({"backend": "vllm", "model_id": "a/b", "request_rate": 4.0, "max_concurrency": null, "duration": 3.0, )"
    R"("completed": 2, "failed": 1, "request_throughput": 0.7, "std_tpot_ms": NaN, "input_lens": [9, 7, 5], )"
    R"("output_lens": [3, 0, 2], "ttfts": [0.5, 0.0, 0.25], "itls": [[0.25, 0.5], [], [0.125]], )"
    R"("start_times": [101.5, 100.5, 100.0], "generated_texts": ["x Infinity \" NaN", "", "y"], )"
    R"("errors": ["", "refused", ""]})";

TEST_F(ClientRunTest, TimesOfVllmsClientCountFromItsFirstRequest) {
  const Result<RecordedRun> run = read(kVllm);
  ASSERT_TRUE(run) << run.error().message;
  EXPECT_EQ(run->format, RunFormat::kVllmBench);
  EXPECT_FALSE(run->has_engine_times());
  EXPECT_EQ(run->failed, 1u);
  ASSERT_EQ(run->requests.size(), 2u);
  const RecordedRequest& first = run->requests[0];
  EXPECT_EQ(first.input_tokens, 5u);
  EXPECT_EQ(first.arrival_s, 0);
  EXPECT_EQ(first.first_token_s, 0.25);
  EXPECT_EQ(first.last_token_s, 0.375);
  const RecordedRequest& second = run->requests[1];
  EXPECT_EQ(second.output_tokens, 3u);
  EXPECT_EQ(second.arrival_s, 1.5);
  EXPECT_EQ(second.queued_s, 1.5);
  EXPECT_EQ(second.first_token_s, 2);
  EXPECT_EQ(second.last_token_s, 2.75);
}

// As Python writes it, Infinity included.
const std::string kSglang =
    R"({"tag": null, "backend": "sglang", "dataset_name": "random", "request_rate": Infinity, "max_concurrency": 2, )"
    R"("request_throughput": 1.0, "input_lens": [4, 5, 6, 7], "output_lens": [2, 2, 2, 2], )"
    R"("ttfts": [0.5, 0.25, 0.5, 0.5], "itls": [[1.5], [0.25], [0.5], [0.5]], "generated_texts": ["", "", "", ""], )"
    R"("errors": ["", "", "", ""]})";

TEST_F(ClientRunTest, WithoutStartTimesARequestBeginsWhenAnotherEnds) {
  const Result<RecordedRun> run = read(kSglang);
  ASSERT_TRUE(run) << run.error().message;
  EXPECT_EQ(run->format, RunFormat::kSglangBench);
  ASSERT_EQ(run->requests.size(), 4u);
  const double starts[] = {0, 0, 0.5, 1.5};  // the second ends at 0.5, the third at 1.5
  for (std::size_t i = 0; i < 4; ++i) EXPECT_EQ(run->requests[i].arrival_s, starts[i]) << i;
  EXPECT_EQ(run->requests[3].last_token_s, 2.5);
  const Result<RecordedRun> all_at_once =
      read(changed(kSglang, ": 2, \"request", ": null, \"request"));
  ASSERT_TRUE(all_at_once);
  for (const RecordedRequest& request : all_at_once->requests) EXPECT_EQ(request.arrival_s, 0);
}

TEST_F(ClientRunTest, SaysWhatIsWrongWithABenchmarksResult) {
  EXPECT_EQ(
      problem_of(changed(kSglang, "Infinity", "4.0")),
      ":1: start_times: missing, and with request_rate 4.0 they cannot be told, expected a run "
      "without a rate");
  EXPECT_EQ(problem_of(changed(kSglang, "Infinity", "\"trace\"")).substr(0, 60),
            ":1: start_times: missing, and with request_rate \"trace\" they");
  EXPECT_EQ(
      problem_of(R"({"request_throughput": 1, "duration": 2, "completed": 3})"),
      ":1: input_lens: missing, expected a run with --save-detailed (vLLM) or --output-details "
      "(SGLang)");
  EXPECT_EQ(problem_of(changed(kVllm, "[0.5, 0.0, 0.25]", "[0.5, 0.25]")),
            ":1: ttfts: 2 values, expected 3 as input_lens");
  EXPECT_EQ(problem_of(changed(kVllm, "[0.5, 0.0, 0.25]", "[NaN, 0.0, 0.25]")),
            ":1: ttfts[0]: \"\" is not a number");
  EXPECT_EQ(problem_of(changed(kVllm, "[9, 7, 5]", "[9, 7, -5]")),
            ":1: input_lens[2]: -5 is not an unsigned 64-bit integer");
  EXPECT_EQ(problem_of(changed(kVllm, "[0.125]", "0.125")), ":1: itls[2]: 0.125 is not an array");
  EXPECT_EQ(problem_of(changed(kVllm, "[3, 0, 2]", "[0, 0, 0]")), ": no request that was answered");
  EXPECT_EQ(problem_of(kVllm + "\n" + kVllm), ":2: another run, expected one a file");
}

std::string aiperf(const std::string& start_ns, const std::string& metrics,
                   const std::string& phase = "profiling", const std::string& error = "null") {
  return R"({"metadata": {"session_num": 1, "request_start_ns": )" + start_ns +
         R"(, "benchmark_phase": ")" + phase + R"("}, "metrics": {)" + metrics + R"(}, "error": )" +
         error + "}\n";
}
const std::string kMetrics =
    R"("input_sequence_length": {"value": 550, "unit": "tokens"}, "output_sequence_length": {"value": 9, "unit": )"
    R"("tokens"}, "time_to_first_token": {"value": 250, "unit": "ms"}, "request_latency": {"value": 0.75, "unit": "sec"})";

TEST_F(ClientRunTest, LinesOfAiperfAreRequests) {
  const Result<RecordedRun> run = read(
      aiperf("1000000000", kMetrics, "warmup") + aiperf("3000000000", kMetrics) +
      aiperf("2500000000", kMetrics) + aiperf("2600000000", "", "profiling", R"({"code": 499})"));
  ASSERT_TRUE(run) << run.error().message;
  EXPECT_EQ(run->format, RunFormat::kAiperf);
  EXPECT_EQ(run->failed, 1u);
  ASSERT_EQ(run->requests.size(), 2u);
  const RecordedRequest& second = run->requests[1];
  EXPECT_DOUBLE_EQ(second.arrival_s, 0.5);
  EXPECT_DOUBLE_EQ(second.first_token_s, 0.75);
  EXPECT_DOUBLE_EQ(second.last_token_s, 1.25);
  EXPECT_EQ(second.input_tokens, 550u);
}

TEST_F(ClientRunTest, SaysWhatIsWrongWithALineOfAiperf) {
  const auto problem = [&](const std::string& what, const std::string& to) {
    return problem_of(aiperf("1", kMetrics) + aiperf("2", changed(kMetrics, what, to)));
  };
  EXPECT_EQ(problem("time_to_first_token", "time"),
            ":2: metrics.time_to_first_token: missing, expected a run with --streaming");
  EXPECT_EQ(problem("\"ms\"", "\"years\""),
            ":2: metrics.time_to_first_token.unit: \"years\", expected ms or sec");
  EXPECT_EQ(
      problem("0.75", "0.1"),
      ":2: metrics.request_latency: 0.1 s, expected at least the 0.25 s of time_to_first_token");
  EXPECT_EQ(problem("550", "-1"),
            ":2: metrics.input_sequence_length.value: -1 is not an unsigned 64-bit integer");
  EXPECT_EQ(problem("9,", "0,"), ":2: metrics: 550 and 0 tokens, expected at least 1 each");
}

}  // namespace
}  // namespace cachalot::trace
