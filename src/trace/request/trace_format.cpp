#include "trace/request/trace_format.h"

#include <algorithm>
#include <iterator>

namespace cachalot::trace {
namespace {

constexpr const char* kNames[] = {"auto",    "mooncake", "weka",   "azure", "dynamo",
                                  "bailian", "burstgpt", "aiperf", "tair"};

// Sets of fields that tell. Mooncake's lines may carry anything beside theirs, but for the fields by which
// other dialects give the same names another meaning: seconds (Bailian), lengths of what is new (AIPerf).
enum Hint : unsigned {
  kRequest = 1,
  kChat = 2,
  kSession = 4,
  kEvent = 8,
  kSessionFile = 16,
  kMicroseconds = 32,
  kTime = 64,
};
struct Field {
  std::string_view name;
  Hint hint;
};
constexpr Field kFields[] = {
    {"hash_ids", kRequest},     {"input_length", kRequest},      {"output_length", kRequest},
    {"chat_id", kChat},         {"session_id", kSession},        {"delay", kSession},
    {"schema", kEvent},         {"event_type", kEvent},          {"event", kEvent},
    {"requests", kSessionFile}, {"hash_id_scope", kSessionFile}, {"timestamp_us", kMicroseconds},
    {"timestamp", kTime},       {"total_keys", kMicroseconds},
};

unsigned hint_of(std::string_view field) {
  for (const Field& known : kFields) {
    if (field == known.name) return known.hint;
  }
  return 0;
}

std::optional<TraceFormat> format_of(unsigned hints) {
  if ((hints & kRequest) != 0) {
    if ((hints & kChat) != 0) return TraceFormat::kBailian;
    return (hints & kSession) != 0 ? TraceFormat::kAiperf : TraceFormat::kMooncake;
  }
  if ((hints & kEvent) != 0) return TraceFormat::kDynamo;
  if ((hints & kSessionFile) != 0) return TraceFormat::kWeka;
  if ((hints & kMicroseconds) != 0) return TraceFormat::kTair;
  if ((hints & kTime) != 0) return TraceFormat::kMooncake;
  return std::nullopt;
}

// The hints among the names of an object's own fields. What is no JSON gives no hint or a wrong one,
// which the reader then complains about.
unsigned hints_of(std::string_view text) {
  unsigned hints = 0;
  int depth = 0;
  bool is_name = false;
  for (std::size_t at = 0; at < text.size(); ++at) {
    const char c = text[at];
    if (c == '"') {
      const std::size_t begin = at + 1;
      for (++at; at < text.size() && text[at] != '"'; ++at) at += text[at] == '\\' ? 1 : 0;
      if (at < text.size() && depth == 1 && is_name) {
        hints |= hint_of(text.substr(begin, at - begin));
      }
      is_name = false;
    } else if (c == '{' || c == '[') {
      is_name = ++depth == 1;
    } else if (c == '}' || c == ']') {
      if (--depth <= 0) break;
    } else if (c == ',') {
      is_name = depth == 1;
    }
  }
  return hints;
}

}  // namespace

Result<TraceFormat> parse_trace_format(const std::string& name) {
  for (std::size_t i = 0; i < std::size(kNames); ++i) {
    if (name == kNames[i]) return static_cast<TraceFormat>(i);
  }
  return Error::make(Code::kInvalidArgument, "\"%.60s\" is no trace format, expected auto, %s",
                     name.c_str(), trace_format_names(", ").c_str());
}

const char* trace_format_name(TraceFormat format) {
  return kNames[static_cast<std::size_t>(format)];
}

std::string trace_format_names(const char* between) {
  std::string names;
  for (std::size_t i = 1; i < std::size(kNames); ++i)
    names += std::string(i == 1 ? "" : between) + kNames[i];
  return names;
}

bool begins_array(std::string_view text) {
  const std::size_t begin = text.find_first_not_of(" \t\r\n");
  return begin != std::string_view::npos && text[begin] == '[';
}

std::optional<TraceFormat> detect_format(std::string_view text) {
  if (text.starts_with("TIMESTAMP,")) return TraceFormat::kAzure;
  if (text.starts_with("Timestamp,")) return TraceFormat::kBurstGpt;
  if (begins_array(text)) text.remove_prefix(text.find('[') + 1);
  const std::size_t begin = text.find_first_not_of(" \t\r\n");
  if (begin == std::string_view::npos || text[begin] != '{') return std::nullopt;
  return format_of(hints_of(text.substr(begin)));
}

std::optional<TraceFormat> detect_format_of_lines(std::string_view text) {
  constexpr int kMostLines = 100;
  for (int line = 0; line < kMostLines; ++line) {
    text.remove_prefix(std::min(text.find_first_not_of(" \t\r\n"), text.size()));
    if (text.empty()) break;
    if (const std::optional<TraceFormat> format = detect_format(text)) return format;
    text.remove_prefix(std::min(text.find('\n'), text.size()));
  }
  return std::nullopt;
}

}  // namespace cachalot::trace
