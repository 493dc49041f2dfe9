// A recorded run of a real engine: when each request arrived, was queued, scheduled, and got its tokens.
//
//   {"request_id": "bench-0", "input_toks": 2358, "output_toks": 531, "arrival_time": 1787267980.08,
//    "queued_ts": 27536.66, "scheduled_ts": 27536.66, "first_token_ts": 27537.35, "last_token_ts": 27554.23}
//
// One request a line, plain or gzip; times in seconds, arrival on the client's clock, the others on the engine's.
// Beside it a JSON file of the engine's options, and a CSV file with one row a second.
// The format is that of LLMServingSim's benchmark of vLLM (github.com/casys-kaist/LLMServingSim). Results of benchmark
// clients are read, too (client_run.cpp): they say when the client sent a request and got its tokens.
#pragma once

#include <cachalot/result.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace cachalot::trace {

struct RecordedRequest {
  std::uint64_t input_tokens = 0;
  std::uint64_t output_tokens = 0;
  double arrival_s = 0;  // from the run's first arrival
  double queued_s = 0;   // these four from the run's first queued time
  double scheduled_s = 0;
  double first_token_s = 0;
  double last_token_s = 0;
};

// "vllm-run": by the engine; "vllm-bench", "sglang-bench", "aiperf-run": by the client of that benchmark.
enum class RunFormat { kEngine, kVllmBench, kSglangBench, kAiperf };
const char* run_format_name(RunFormat format);
// @errors kInvalidArgument
Result<RunFormat> parse_run_format(const std::string& name);

struct RecordedRun {
  RunFormat format = RunFormat::kEngine;
  std::vector<RecordedRequest> requests;  // in the order of arrival, at least one
  std::uint64_t failed = 0;               // without an answer, left out

  // False: queued and scheduled are the time at which the client sent the request.
  bool has_engine_times() const { return format == RunFormat::kEngine; }
};

// The content tells the format.
// @errors kInvalidArgument: no such file; kBadInput: "file:line: …": a field is missing or no number, no token of
//         input or output, times in the wrong order, several runs in a file; kIo
Result<RecordedRun> read_recorded_run(const std::string& path);

struct RunOptions {
  std::string model;
  std::uint64_t tensor_parallel = 1;
  std::uint64_t max_sequences = 0;
  std::uint64_t step_tokens = 0;
  std::uint64_t block_tokens = 16;
  double gpu_memory_utilization = 0.9;
  std::optional<std::uint64_t> blocks;  // where it was recorded
  bool prefix_caching = true;
};

// @errors as above
Result<RunOptions> read_run_options(const std::string& path);

struct RunSecond {
  double at_s = 0;  // end of the second
  double running = 0, waiting = 0;
  double kv_cache_share = 0;  // 0 to 1
};

// @errors as above
Result<std::vector<RunSecond>> read_run_seconds(const std::string& path);

}  // namespace cachalot::trace
