// Recorded runs as the clients of benchmarks write them: times as the client saw them, none of the engine.
//
// `vllm bench serve --save-result --save-detailed` and SGLang's `bench_serving --output-details`: an object a run, with
// an array for each figure:
//
//   {"request_rate": "inf", "max_concurrency": null, …, "input_lens": [9, 7], "output_lens": [3, 2], "ttfts": [0.1, 0.2],
//    "itls": [[0.02, 0.03], [0.02]], "start_times": [8.5, 9.1], "errors": ["", ""]}
//
// SGLang has no start_times, and Infinity where JSON has no number. Without start times they follow only where requests
// do not wait for a clock: all are sent at once, or each as soon as one of `max_concurrency` others has ended.
//
// AIPerf's profile_export.jsonl: a request a line, {"metadata": {…}, "metrics": {…}, "error": null}.
//
// Sources: vllm/benchmarks/serve.py; sglang/benchmark/serving.py; ai-dynamo/aiperf,
// docs/tutorials/working-with-profile-exports.md. Read for the form.
#include "trace/run/client_run.h"

#include <simdjson.h>

#include <functional>
#include <queue>
#include <utility>

#include "trace/file/line_reader.h"
#include "trace/request/json_value.h"

namespace cachalot::trace {
namespace {

namespace dom = simdjson::dom;

Result<std::vector<dom::element>> values_of(const dom::object& object, const char* name) {
  CACHALOT_TRY_ASSIGN(const dom::element value, field_of(object, "", name));
  dom::array array;
  if (value.get(array) != simdjson::SUCCESS) {
    return Error::make(Code::kBadInput, "%s: %s is not an array", name, shown_value(value).c_str());
  }
  return std::vector<dom::element>(array.begin(), array.end());
}

Result<std::vector<dom::element>> values_of(const dom::object& object, const char* name,
                                            std::size_t expected) {
  CACHALOT_TRY_ASSIGN(auto values, values_of(object, name));
  if (values.size() == expected) return values;
  return Error::make(Code::kBadInput, "%s: %zu values, expected %zu as input_lens", name,
                     values.size(), expected);
}

std::string place(const char* name, std::size_t at) {
  return std::string(name) + "[" + std::to_string(at) + "]";
}

Result<double> sum_of_gaps(const dom::element& gaps, const std::string& where) {
  dom::array array;
  if (gaps.get(array) != simdjson::SUCCESS) {
    return Error::make(Code::kBadInput, "%s: %s is not an array", where.c_str(),
                       shown_value(gaps).c_str());
  }
  double sum = 0;
  for (const dom::element& gap : array) {
    CACHALOT_TRY_ASSIGN(const double seconds, read_number(gap, where));
    sum += seconds;
  }
  return sum;
}

// How many requests the client had in flight at most; 0: any number.
// @errors kBadInput: it sent them by a clock, whose times the file does not say
Result<std::uint64_t> concurrency_of(const dom::object& object) {
  CACHALOT_TRY_ASSIGN(const dom::element rate, field_of(object, "", "request_rate"));
  std::string_view text;
  const bool is_endless = rate.is_null() || (rate.get(text) == simdjson::SUCCESS && text == "inf");
  if (!is_endless) {
    return Error::make(
        Code::kBadInput,
        "start_times: missing, and with request_rate %s they cannot be told, expected "
        "a run without a rate",
        shown_value(rate).c_str());
  }
  CACHALOT_TRY_ASSIGN(const dom::element most, field_of(object, "", "max_concurrency"));
  if (most.is_null()) return std::uint64_t{0};
  CACHALOT_TRY_ASSIGN(const std::uint64_t concurrency, read_integer(most, "max_concurrency"));
  if (concurrency != 0) return concurrency;
  return Error::make(Code::kBadInput, "max_concurrency: 0, expected at least 1 or null");
}

// Requests in the order in which they were sent, of a client that never waits for a clock.
void set_starts(std::uint64_t concurrency, std::vector<RecordedRequest>& requests) {
  std::priority_queue<double, std::vector<double>, std::greater<>> ends;
  for (RecordedRequest& request : requests) {
    double start = 0;
    if (concurrency != 0 && ends.size() == concurrency) {
      start = ends.top();
      ends.pop();
    }
    for (double* const time : {&request.arrival_s, &request.queued_s, &request.scheduled_s,
                               &request.first_token_s, &request.last_token_s}) {
      *time += start;
    }
    ends.push(request.last_token_s);
  }
}

RecordedRequest request_of(std::uint64_t input, std::uint64_t output, double start, double ttft,
                           double generating) {
  return {.input_tokens = input,
          .output_tokens = output,
          .arrival_s = start,
          .queued_s = start,
          .scheduled_s = start,
          .first_token_s = start + ttft,
          .last_token_s = start + ttft + generating};
}

// In seconds; `unit` as AIPerf names it.
Result<double> seconds_of(const dom::object& metrics, const char* name) {
  dom::element metric;
  if (metrics[name].get(metric) != simdjson::SUCCESS) {
    return Error::make(Code::kBadInput, "metrics.%s: missing, expected a run with --streaming",
                       name);
  }
  dom::object object;
  if (metric.get(object) != simdjson::SUCCESS) {
    return Error::make(Code::kBadInput, "metrics.%s: %s is not an object", name,
                       shown_value(metric).c_str());
  }
  const std::string where = std::string("metrics.") + name + ".";
  CACHALOT_TRY_ASSIGN(const dom::element value, field_of(object, where.c_str(), "value"));
  CACHALOT_TRY_ASSIGN(const double number, read_number(value, where + "value"));
  CACHALOT_TRY_ASSIGN(const dom::element unit, field_of(object, where.c_str(), "unit"));
  std::string_view text;
  if (unit.get(text) == simdjson::SUCCESS && text == "ms") return number * 1e-3;
  if (unit.get(text) == simdjson::SUCCESS && (text == "sec" || text == "s")) return number;
  return Error::make(Code::kBadInput, "%sunit: %s, expected ms or sec", where.c_str(),
                     shown_value(unit).c_str());
}

Result<std::uint64_t> measured_tokens(const dom::object& metrics, const char* name) {
  CACHALOT_TRY_ASSIGN(const dom::element metric, field_of(metrics, "metrics.", name));
  const std::string where = std::string("metrics.") + name + ".value";
  dom::element value;
  if (metric["value"].get(value) != simdjson::SUCCESS) {
    return Error::make(Code::kBadInput, "%s: missing", where.c_str());
  }
  return read_integer(value, where);
}

Result<dom::object> object_at(const dom::object& line, const char* name) {
  CACHALOT_TRY_ASSIGN(const dom::element value, field_of(line, "", name));
  dom::object object;
  if (value.get(object) == simdjson::SUCCESS) return object;
  return Error::make(Code::kBadInput, "%s: %s is not an object", name, shown_value(value).c_str());
}

}  // namespace

Status add_bench_run(const dom::object& object, RecordedRun& run) {
  CACHALOT_TRY_ASSIGN(const auto inputs, values_of(object, "input_lens"));
  CACHALOT_TRY_ASSIGN(const auto outputs, values_of(object, "output_lens", inputs.size()));
  CACHALOT_TRY_ASSIGN(const auto ttfts, values_of(object, "ttfts", inputs.size()));
  CACHALOT_TRY_ASSIGN(const auto itls, values_of(object, "itls", inputs.size()));
  std::vector<dom::element> starts;
  const bool has_starts = object["start_times"].error() == simdjson::SUCCESS;
  std::uint64_t concurrency = 0;
  if (has_starts) {
    CACHALOT_TRY_ASSIGN(starts, values_of(object, "start_times", inputs.size()));
  } else {
    CACHALOT_TRY_ASSIGN(concurrency, concurrency_of(object));
  }
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    CACHALOT_TRY_ASSIGN(const std::uint64_t output,
                        read_integer(outputs[i], place("output_lens", i)));
    CACHALOT_TRY_ASSIGN(const double ttft, read_number(ttfts[i], place("ttfts", i)));
    // Failed ones have no answer.
    if (output == 0 || ttft == 0) {
      ++run.failed;
      continue;
    }
    CACHALOT_TRY_ASSIGN(const std::uint64_t input, read_integer(inputs[i], place("input_lens", i)));
    if (input == 0) {
      return Error::make(Code::kBadInput, "input_lens[%zu]: 0, expected at least 1", i);
    }
    CACHALOT_TRY_ASSIGN(const double generating, sum_of_gaps(itls[i], place("itls", i)));
    double start = 0;
    if (has_starts) {
      CACHALOT_TRY_ASSIGN(start, read_number(starts[i], place("start_times", i)));
    }
    run.requests.push_back(request_of(input, output, start, ttft, generating));
  }
  if (!has_starts) set_starts(concurrency, run.requests);
  return {};
}

Status add_aiperf_request(const dom::object& line, RecordedRun& run) {
  CACHALOT_TRY_ASSIGN(const dom::object metadata, object_at(line, "metadata"));
  std::string_view phase;
  if (metadata["benchmark_phase"].get(phase) == simdjson::SUCCESS && phase != "profiling") {
    return {};
  }
  dom::element error;
  if (line["error"].get(error) == simdjson::SUCCESS && !error.is_null()) {
    ++run.failed;
    return {};
  }
  CACHALOT_TRY_ASSIGN(const dom::object metrics, object_at(line, "metrics"));
  CACHALOT_TRY_ASSIGN(const dom::element started,
                      field_of(metadata, "metadata.", "request_start_ns"));
  CACHALOT_TRY_ASSIGN(const std::uint64_t start_ns,
                      read_integer(started, "metadata.request_start_ns"));
  CACHALOT_TRY_ASSIGN(const std::uint64_t input, measured_tokens(metrics, "input_sequence_length"));
  CACHALOT_TRY_ASSIGN(const std::uint64_t output,
                      measured_tokens(metrics, "output_sequence_length"));
  CACHALOT_TRY_ASSIGN(const double ttft, seconds_of(metrics, "time_to_first_token"));
  CACHALOT_TRY_ASSIGN(const double latency, seconds_of(metrics, "request_latency"));
  if (input == 0 || output == 0) {
    return Error::make(Code::kBadInput, "metrics: %llu and %llu tokens, expected at least 1 each",
                       static_cast<unsigned long long>(input),
                       static_cast<unsigned long long>(output));
  }
  if (latency < ttft) {
    return Error::make(Code::kBadInput,
                       "metrics.request_latency: %.6g s, expected at least the %.6g s of "
                       "time_to_first_token",
                       latency, ttft);
  }
  run.requests.push_back(
      request_of(input, output, static_cast<double>(start_ns) * 1e-9, ttft, latency - ttft));
  return {};
}

// Python writes these where JSON has no number. Outside of texts they stand for what cannot be a figure.
void mend_python_numbers(std::string& text) {
  bool in_text = false;
  for (std::size_t at = 0; at < text.size(); ++at) {
    if (in_text && text[at] == '\\') {
      ++at;
    } else if (text[at] == '"') {
      in_text = !in_text;
    } else if (!in_text && text.compare(at, 8, "Infinity") == 0) {
      text.replace(at, 8, "null    ");
      at += 7;
    } else if (!in_text && text.compare(at, 3, "NaN") == 0) {
      text.replace(at, 3, "\"\" ");
      at += 2;
    }
  }
}

}  // namespace cachalot::trace
