// The formats of request traces, and how a file says which it has.
#pragma once

#include <cachalot/result.h>

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace cachalot::trace {

enum class TraceFormat {
  kAuto,
  kMooncake,
  kWeka,
  kAzure,
  kDynamo,
  kBailian,
  kBurstGpt,
  kAiperf,
  kTair,
};

// "auto", "mooncake" … @errors kInvalidArgument
Result<TraceFormat> parse_trace_format(const std::string& name);
const char* trace_format_name(TraceFormat format);
// All but "auto", with `between` between two: "mooncake|weka|…".
std::string trace_format_names(const char* between);

// What begins here, if it can be told: `text` is the beginning of a file or a line, and may be cut
// anywhere. Of an array of JSON objects: what its first object is. Never kAuto.
std::optional<TraceFormat> detect_format(std::string_view text);
// The same of the first line of `text` that tells.
std::optional<TraceFormat> detect_format_of_lines(std::string_view text);

// Whether `text` begins with an array of JSON, not with an object of it.
bool begins_array(std::string_view text);

// What a format says of a whole trace.
struct TraceProperties {
  TraceFormat format = TraceFormat::kMooncake;
  std::uint64_t block_tokens = 0;  // as the trace states it; 0: it does not
  bool has_ids = true;
  bool ids_are_local = false;  // equal ids of two files do not mean equal blocks
};

}  // namespace cachalot::trace
