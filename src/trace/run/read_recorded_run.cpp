#include "trace/run/recorded_run.h"

#include <simdjson.h>

#include <algorithm>
#include <charconv>
#include <cmath>

#include "trace/file/line_reader.h"
#include "trace/request/json_value.h"
#include "trace/run/client_run.h"

namespace cachalot::trace {
namespace {

namespace dom = simdjson::dom;

constexpr const char* kFormatNames[] = {"vllm-run", "vllm-bench", "sglang-bench", "aiperf-run"};

Error at_line(const LineReader& lines, const std::string& path, const char* message) {
  return Error::make(Code::kBadInput, "%s:%llu: %s", shown_path(path).c_str(),
                     static_cast<unsigned long long>(lines.line_number()), message);
}

Result<dom::object> parse_object(dom::parser& parser, std::string_view text) {
  dom::element document;
  const auto error = parser.parse(text.data(), text.size(), true).get(document);
  if (error != simdjson::SUCCESS) return not_json(error);
  dom::object object;
  if (document.get(object) == simdjson::SUCCESS) return object;
  return Error::make(Code::kBadInput, "%s is not an object", shown_value(document).c_str());
}

Result<double> number_of(const dom::object& object, const char* name) {
  CACHALOT_TRY_ASSIGN(const dom::element value, field_of(object, "", name));
  return read_number(value, name);
}

Result<std::uint64_t> tokens_of(const dom::object& object, const char* name) {
  CACHALOT_TRY_ASSIGN(const dom::element value, field_of(object, "", name));
  CACHALOT_TRY_ASSIGN(const std::uint64_t tokens, read_integer(value, name));
  if (tokens != 0) return tokens;
  return Error::make(Code::kBadInput, "%s: 0, expected at least 1", name);
}

Result<RecordedRequest> parse_request(const dom::object& object) {
  RecordedRequest request;
  CACHALOT_TRY_ASSIGN(request.input_tokens, tokens_of(object, "input_toks"));
  CACHALOT_TRY_ASSIGN(request.output_tokens, tokens_of(object, "output_toks"));
  CACHALOT_TRY_ASSIGN(request.arrival_s, number_of(object, "arrival_time"));
  CACHALOT_TRY_ASSIGN(request.queued_s, number_of(object, "queued_ts"));
  CACHALOT_TRY_ASSIGN(request.scheduled_s, number_of(object, "scheduled_ts"));
  CACHALOT_TRY_ASSIGN(request.first_token_s, number_of(object, "first_token_ts"));
  CACHALOT_TRY_ASSIGN(request.last_token_s, number_of(object, "last_token_ts"));
  if (request.queued_s <= request.scheduled_s && request.scheduled_s <= request.first_token_s &&
      request.first_token_s <= request.last_token_s) {
    return request;
  }
  return Error::make(Code::kBadInput,
                     "times are not in the order queued_ts, scheduled_ts, first_token_ts, "
                     "last_token_ts");
}

Result<std::string> read_whole(const std::string& path) {
  constexpr std::size_t kMostBytes = std::size_t{1} << 20;
  CACHALOT_TRY_ASSIGN(const std::unique_ptr<ByteSource> source, ByteSource::open_text(path));
  std::string text(kMostBytes, '\0');
  CACHALOT_TRY_ASSIGN(const std::size_t bytes, source->read(text));
  if (bytes == kMostBytes) {
    return Error::make(Code::kBadInput, "%s: longer than 1 MiB, expected an engine's options",
                       shown_path(path).c_str());
  }
  text.resize(bytes);
  return text;
}

// Null where it is absent or null.
std::optional<dom::element> optional_of(const dom::object& object, const char* name) {
  dom::element value;
  if (object.at_key(name).get(value) != simdjson::SUCCESS || value.is_null()) return std::nullopt;
  return value;
}

Status read_optional(const dom::object& object, const char* name, std::uint64_t& value) {
  const std::optional<dom::element> found = optional_of(object, name);
  if (!found) return {};
  CACHALOT_TRY_ASSIGN(value, read_integer(*found, name));
  if (value != 0) return {};
  return Error::make(Code::kBadInput, "%s: 0, expected at least 1", name);
}

Result<RunOptions> parse_options(const dom::object& object) {
  RunOptions options;
  CACHALOT_TRY_ASSIGN(const dom::element engine, field_of(object, "", "engine_kwargs"));
  dom::object kwargs;
  if (engine.get(kwargs) != simdjson::SUCCESS) {
    return Error::make(Code::kBadInput, "engine_kwargs: %s is not an object",
                       shown_value(engine).c_str());
  }
  CACHALOT_TRY_ASSIGN(const dom::element model, field_of(kwargs, "engine_kwargs.", "model"));
  std::string_view name;
  if (model.get(name) != simdjson::SUCCESS) {
    return Error::make(Code::kBadInput, "engine_kwargs.model: %s is not a string",
                       shown_value(model).c_str());
  }
  options.model = name;
  CACHALOT_TRY_ASSIGN(options.max_sequences, tokens_of(kwargs, "max_num_seqs"));
  CACHALOT_TRY_ASSIGN(options.step_tokens, tokens_of(kwargs, "max_num_batched_tokens"));
  CACHALOT_TRY(read_optional(kwargs, "tensor_parallel_size", options.tensor_parallel));
  const std::optional<dom::element> cache = optional_of(object, "kv_cache");
  dom::object kv;
  if (!cache || cache->get(kv) != simdjson::SUCCESS) return options;
  std::uint64_t blocks = 0;
  CACHALOT_TRY(read_optional(kv, "num_gpu_blocks", blocks));
  if (blocks != 0) options.blocks = blocks;
  CACHALOT_TRY(read_optional(kv, "block_size", options.block_tokens));
  if (const auto share = optional_of(kv, "gpu_memory_utilization")) {
    CACHALOT_TRY_ASSIGN(options.gpu_memory_utilization,
                        read_number(*share, "gpu_memory_utilization"));
  }
  if (const auto caching = optional_of(kv, "enable_prefix_caching")) {
    if (caching->get(options.prefix_caching) != simdjson::SUCCESS) {
      return Error::make(Code::kBadInput, "enable_prefix_caching: %s is not true or false",
                         shown_value(*caching).c_str());
    }
  }
  return options;
}

bool has(const dom::object& object, const char* name) {
  return object[name].error() == simdjson::SUCCESS;
}

// By the first line of a file.
Result<RunFormat> format_of(const dom::object& object) {
  if (has(object, "metadata") && has(object, "metrics")) return RunFormat::kAiperf;
  if (has(object, "input_lens")) {
    // Of the two only SGLang's names its data set.
    return has(object, "dataset_name") ? RunFormat::kSglangBench : RunFormat::kVllmBench;
  }
  if (!has(object, "input_toks") && has(object, "request_throughput")) {
    return Error::make(Code::kBadInput,
                       "input_lens: missing, expected a run with --save-detailed (vLLM) or "
                       "--output-details (SGLang)");
  }
  return RunFormat::kEngine;
}

Status add_line(dom::parser& parser, std::string_view line, bool is_first, RecordedRun& run) {
  std::string text(line);
  mend_python_numbers(text);
  CACHALOT_TRY_ASSIGN(const dom::object object, parse_object(parser, text));
  if (is_first) {
    CACHALOT_TRY_ASSIGN(run.format, format_of(object));
  }
  switch (run.format) {
    case RunFormat::kAiperf:
      return add_aiperf_request(object, run);
    case RunFormat::kVllmBench:
    case RunFormat::kSglangBench:
      if (is_first) return add_bench_run(object, run);
      return Error::make(Code::kBadInput, "another run, expected one a file");
    case RunFormat::kEngine:
      break;
  }
  CACHALOT_TRY_ASSIGN(const RecordedRequest request, parse_request(object));
  run.requests.push_back(request);
  return {};
}

bool take_number(std::string_view& line, double& value) {
  const auto [end, problem] = std::from_chars(line.data(), line.data() + line.size(), value);
  if (problem != std::errc() || !std::isfinite(value)) return false;
  line.remove_prefix(static_cast<std::size_t>(end - line.data()));
  if (!line.empty() && line.front() == ',') line.remove_prefix(1);
  return true;
}

}  // namespace

const char* run_format_name(RunFormat format) {
  return kFormatNames[static_cast<std::size_t>(format)];
}

Result<RunFormat> parse_run_format(const std::string& name) {
  for (std::size_t i = 0; i < std::size(kFormatNames); ++i) {
    if (name == kFormatNames[i]) return static_cast<RunFormat>(i);
  }
  return Error::make(Code::kInvalidArgument, "recorded run: \"%.60s\" is no format of one",
                     name.c_str());
}

Result<RecordedRun> read_recorded_run(const std::string& path) {
  CACHALOT_TRY_ASSIGN(LineReader lines, LineReader::open(path));
  dom::parser parser{LineReader::kMaxLineBytes};
  RecordedRun run;
  bool is_first = true;
  for (;;) {
    CACHALOT_TRY_ASSIGN(const LineReader::Found found, lines.next());
    if (found == LineReader::Found::kEnd) break;
    if (found == LineReader::Found::kTooLong) return at_line(lines, path, "the line is too long");
    if (lines.line().find_first_not_of(" \t\r") == std::string_view::npos) continue;
    const Status added = add_line(parser, lines.line(), is_first, run);
    if (!added) return at_line(lines, path, added.error().message);
    is_first = false;
  }
  std::vector<RecordedRequest>& requests = run.requests;
  if (requests.empty()) {
    return Error::make(Code::kBadInput,
                       run.failed == 0 ? "%s: no requests" : "%s: no request that was answered",
                       shown_path(path).c_str());
  }
  std::stable_sort(
      requests.begin(), requests.end(),
      [](const RecordedRequest& a, const RecordedRequest& b) { return a.arrival_s < b.arrival_s; });
  double first_queued = requests.front().queued_s;
  for (const RecordedRequest& request : requests)
    first_queued = std::min(first_queued, request.queued_s);
  const double first_arrival = requests.front().arrival_s;
  for (RecordedRequest& request : requests) {
    request.arrival_s -= first_arrival;
    request.queued_s -= first_queued;
    request.scheduled_s -= first_queued;
    request.first_token_s -= first_queued;
    request.last_token_s -= first_queued;
  }
  return run;
}

Result<RunOptions> read_run_options(const std::string& path) {
  CACHALOT_TRY_ASSIGN(const std::string text, read_whole(path));
  dom::parser parser;
  const Result<dom::object> object = parse_object(parser, text);
  const Result<RunOptions> options =
      object ? parse_options(*object) : Result<RunOptions>(object.error());
  if (options) return *options;
  return Error::make(Code::kBadInput, "%s: %s", shown_path(path).c_str(), options.error().message);
}

Result<std::vector<RunSecond>> read_run_seconds(const std::string& path) {
  constexpr std::string_view kHeader =
      "t,prompt_throughput,gen_throughput,running,waiting,kv_cache_pct";
  CACHALOT_TRY_ASSIGN(LineReader lines, LineReader::open(path));
  std::vector<RunSecond> seconds;
  bool has_header = false;
  for (;;) {
    CACHALOT_TRY_ASSIGN(const LineReader::Found found, lines.next());
    if (found == LineReader::Found::kEnd) break;
    std::string_view line = lines.line();
    if (line.ends_with('\r')) line.remove_suffix(1);
    if (!has_header) {
      if (line != kHeader) {
        return at_line(lines, path, ("expected " + std::string(kHeader)).c_str());
      }
      has_header = true;
      continue;
    }
    RunSecond second;
    double prompt = 0, generated = 0, percent = 0;
    if (!take_number(line, second.at_s) || !take_number(line, prompt) ||
        !take_number(line, generated) || !take_number(line, second.running) ||
        !take_number(line, second.waiting) || !take_number(line, percent) || !line.empty()) {
      return at_line(lines, path, "expected six numbers");
    }
    second.kv_cache_share = percent / 100;
    seconds.push_back(second);
  }
  if (!seconds.empty()) return seconds;
  return Error::make(Code::kBadInput, "%s: no rows", shown_path(path).c_str());
}

}  // namespace cachalot::trace
