// Recorded runs of benchmark clients, added up request by request. @see recorded_run.h
#pragma once

#include <cachalot/result.h>

#include <string>

#include "trace/run/recorded_run.h"

namespace simdjson::dom {
class object;
}  // namespace simdjson::dom

namespace cachalot::trace {

// The result of vLLM's or SGLang's benchmark. @errors kBadInput: names the field
Status add_bench_run(const simdjson::dom::object& object, RecordedRun& run);
// A line of AIPerf's profile_export.jsonl. @errors kBadInput: names the field
Status add_aiperf_request(const simdjson::dom::object& line, RecordedRun& run);
// What Python writes for numbers that are none, as JSON of the same length: Infinity is null, NaN a text.
void mend_python_numbers(std::string& text);

}  // namespace cachalot::trace
