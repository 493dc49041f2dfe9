#include "trace/request/trace_format.h"

#include <algorithm>
#include <iterator>

namespace cachalot::trace {
namespace {

constexpr const char* kNames[] = {"auto", "mooncake", "weka", "azure", "dynamo"};

// Fields that tell, with the strongest hint first: Mooncake's may carry anything beside them.
struct Hint {
  std::string_view field;
  TraceFormat format;
};
constexpr Hint kHints[] = {
    {"hash_ids", TraceFormat::kMooncake},      {"input_length", TraceFormat::kMooncake},
    {"output_length", TraceFormat::kMooncake}, {"schema", TraceFormat::kDynamo},
    {"event_type", TraceFormat::kDynamo},      {"event", TraceFormat::kDynamo},
    {"requests", TraceFormat::kWeka},          {"hash_id_scope", TraceFormat::kWeka},
    {"timestamp", TraceFormat::kMooncake},
};
constexpr std::size_t kNoHint = std::size(kHints);

std::size_t hint_of(std::string_view field) {
  for (std::size_t i = 0; i < kNoHint; ++i) {
    if (field == kHints[i].field) return i;
  }
  return kNoHint;
}

// The best hint among the names of an object's own fields. What is no JSON gives no hint or a wrong
// one, which the reader then complains about.
std::size_t best_hint(std::string_view text) {
  std::size_t best = kNoHint;
  int depth = 0;
  bool is_name = false;
  for (std::size_t at = 0; at < text.size(); ++at) {
    const char c = text[at];
    if (c == '"') {
      const std::size_t begin = at + 1;
      for (++at; at < text.size() && text[at] != '"'; ++at) at += text[at] == '\\' ? 1 : 0;
      if (at < text.size() && depth == 1 && is_name) {
        best = std::min(best, hint_of(text.substr(begin, at - begin)));
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
  return best;
}

}  // namespace

Result<TraceFormat> parse_trace_format(const std::string& name) {
  for (std::size_t i = 0; i < std::size(kNames); ++i) {
    if (name == kNames[i]) return static_cast<TraceFormat>(i);
  }
  return Error::make(
      Code::kInvalidArgument,
      "trace format: \"%.60s\" is none, expected auto, mooncake, weka, azure or dynamo",
      name.c_str());
}

const char* trace_format_name(TraceFormat format) {
  return kNames[static_cast<std::size_t>(format)];
}

std::optional<TraceFormat> detect_format(std::string_view text) {
  if (text.starts_with("TIMESTAMP,")) return TraceFormat::kAzure;
  const std::size_t begin = text.find_first_not_of(" \t\r\n");
  if (begin == std::string_view::npos || text[begin] != '{') return std::nullopt;
  const std::size_t hint = best_hint(text.substr(begin));
  if (hint == kNoHint) return std::nullopt;
  return kHints[hint].format;
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
