#include "trace/run/recorded_run.h"

#include <gtest/gtest.h>

#include <string>

#include "testing/os/scratch_folder.h"

namespace cachalot::trace {
namespace {

std::string line(const std::string& input, const std::string& arrival, const std::string& times) {
  return "{\"request_id\": \"r\", \"input_toks\": " + input +
         ", \"output_toks\": 3, \"arrival_time\": " + arrival + ", " + times + "}\n";
}
const std::string kTimes =
    "\"queued_ts\": 101, \"scheduled_ts\": 101, \"first_token_ts\": 103, \"last_token_ts\": 104";

class RecordedRunTest : public ::testing::Test {
 protected:
  std::string problem_of(const std::string& text) {
    const auto requests = read_recorded_run(folder_.write("r.jsonl", text));
    if (requests) return "none";
    EXPECT_EQ(requests.error().code, Code::kBadInput);
    const std::string message = requests.error().message;
    return message.substr(message.find("r.jsonl") + 7);
  }
  os::ScratchFolder folder_;
};

TEST_F(RecordedRunTest, TimesCountFromTheFirstArrivalAndTheFirstQueuedTime) {
  const auto requests = read_recorded_run(folder_.write(
      "r.jsonl",
      line("9", "1007", kTimes) + line("5", "1005.5",
                                       "\"queued_ts\": 100, \"scheduled_ts\": 100.5, "
                                       "\"first_token_ts\": 102, \"last_token_ts\": 110")));
  ASSERT_TRUE(requests.ok()) << requests.error().message;
  const std::vector<RecordedRequest>& all = requests->requests;
  ASSERT_EQ(all.size(), 2u);
  EXPECT_EQ(all[0].input_tokens, 5u);
  EXPECT_DOUBLE_EQ(all[0].arrival_s, 0);
  EXPECT_DOUBLE_EQ(all[0].scheduled_s, 0.5);
  EXPECT_DOUBLE_EQ(all[1].arrival_s, 1.5);
  EXPECT_DOUBLE_EQ(all[1].queued_s, 1);
  EXPECT_DOUBLE_EQ(all[1].last_token_s, 4);
}

TEST_F(RecordedRunTest, BrokenLinesAreNamed) {
  EXPECT_EQ(problem_of(line("9", "1", kTimes) + line("0", "1", kTimes)),
            ":2: input_toks: 0, expected at least 1");
  EXPECT_EQ(problem_of(line("-4", "1", kTimes)),
            ":1: input_toks: -4 is not an unsigned 64-bit integer");
  EXPECT_EQ(problem_of(line("9", "1", "\"queued_ts\": 101")), ":1: scheduled_ts: missing");
  EXPECT_EQ(problem_of(line("9", "1",
                            "\"queued_ts\": 101, \"scheduled_ts\": 100, \"first_token_ts\": 103, "
                            "\"last_token_ts\": 104")),
            ":1: times are not in the order queued_ts, scheduled_ts, first_token_ts, "
            "last_token_ts");
  EXPECT_EQ(problem_of("\n"), ": no requests");
  EXPECT_NE(problem_of("{").find("not valid JSON"), std::string::npos);
  // A trace without the engine's times.
  EXPECT_EQ(problem_of("{\"timestamp\": 1, \"input_length\": 2, \"output_length\": 3}\n"),
            ":1: input_toks: missing");
}

TEST_F(RecordedRunTest, OptionsAreReadWithAndWithoutTheKvCache) {
  const std::string engine =
      "{\"engine_kwargs\": {\"model\": \"a/b\", \"tensor_parallel_size\": 2, \"max_num_seqs\": 8, "
      "\"max_num_batched_tokens\": 64, \"max_model_len\": null}";
  const auto plain = read_run_options(folder_.write("m.json", engine + "}"));
  ASSERT_TRUE(plain.ok()) << plain.error().message;
  EXPECT_EQ(plain->model, "a/b");
  EXPECT_EQ(plain->tensor_parallel, 2u);
  EXPECT_EQ(plain->step_tokens, 64u);
  EXPECT_FALSE(plain->blocks.has_value());
  const auto full = read_run_options(folder_.write(
      "m.json", engine + ", \"kv_cache\": {\"num_gpu_blocks\": 77, \"block_size\": 32, "
                         "\"enable_prefix_caching\": false, \"gpu_memory_utilization\": 0.8}}"));
  ASSERT_TRUE(full.ok()) << full.error().message;
  EXPECT_EQ(full->blocks, 77u);
  EXPECT_EQ(full->block_tokens, 32u);
  EXPECT_FALSE(full->prefix_caching);
  EXPECT_DOUBLE_EQ(full->gpu_memory_utilization, 0.8);
}

TEST_F(RecordedRunTest, OptionsThatAreMissingOrWrongAreNamed) {
  const auto problem = [this](const std::string& text) {
    const auto options = read_run_options(folder_.write("m.json", text));
    if (options) return std::string("none");
    const std::string message = options.error().message;
    return message.substr(message.find("m.json") + 8);
  };
  EXPECT_EQ(problem("{}"), "engine_kwargs: missing");
  EXPECT_EQ(problem("{\"engine_kwargs\": {\"model\": \"m\", \"max_num_batched_tokens\": 1}}"),
            "max_num_seqs: missing");
  EXPECT_EQ(problem("{\"engine_kwargs\": {\"model\": \"m\", \"max_num_seqs\": -1, "
                    "\"max_num_batched_tokens\": 1}}"),
            "max_num_seqs: -1 is not an unsigned 64-bit integer");
  EXPECT_NE(problem("[1]").find("is not an object"), std::string::npos);
}

TEST_F(RecordedRunTest, SecondsAreReadAndChecked) {
  const std::string header = "t,prompt_throughput,gen_throughput,running,waiting,kv_cache_pct\n";
  const auto seconds = read_run_seconds(folder_.write("s.csv", header + "1.0,10,20,3,4,50.5\n"));
  ASSERT_TRUE(seconds.ok()) << seconds.error().message;
  ASSERT_EQ(seconds->size(), 1u);
  EXPECT_DOUBLE_EQ((*seconds)[0].running, 3);
  EXPECT_DOUBLE_EQ((*seconds)[0].kv_cache_share, 0.505);
  EXPECT_FALSE(read_run_seconds(folder_.write("s.csv", "t,x\n1,2\n")).ok());
  EXPECT_FALSE(read_run_seconds(folder_.write("s.csv", header + "1,2,3\n")).ok());
  EXPECT_FALSE(read_run_seconds(folder_.write("s.csv", header)).ok());
}

}  // namespace
}  // namespace cachalot::trace
