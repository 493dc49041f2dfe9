#include "node/metrics/exposition.h"

#include <algorithm>
#include <cstddef>
#include <utility>

#include "base/utf8.h"

namespace cachalot::node {
namespace {

const char* type_name(MetricType type, ExpositionFormat format) {
  if (type == MetricType::kCounter) return "counter";
  // The older format has no type for information.
  return type == MetricType::kInfo && format == ExpositionFormat::kOpenMetrics ? "info" : "gauge";
}

const char* sample_suffix(MetricType type) {
  if (type == MetricType::kCounter) return "_total";
  return type == MetricType::kInfo ? "_info" : "";
}

void append_escaped(std::string& to, std::string_view value) {
  while (!value.empty()) {
    const std::size_t bytes = base::utf8_character_bytes(value);
    if (bytes == 0) {
      to += "\xef\xbf\xbd";
    } else if (value[0] == '\n') {
      to += "\\n";
    } else {
      if (value[0] == '\\' || value[0] == '"') to += '\\';
      to += value.substr(0, bytes);
    }
    value.remove_prefix(std::max<std::size_t>(bytes, 1));
  }
}

std::string_view trimmed(std::string_view text) {
  const std::size_t first = text.find_first_not_of(" \t");
  if (first == std::string_view::npos) return {};
  return text.substr(first, text.find_last_not_of(" \t") - first + 1);
}

// Cuts the text before the next separator off `rest`.
std::string_view cut(std::string_view& rest, char separator) {
  const std::size_t at = std::min(rest.find(separator), rest.size());
  const std::string_view part = trimmed(rest.substr(0, at));
  rest.remove_prefix(std::min(at + 1, rest.size()));
  return part;
}

std::string lower(std::string_view text) {
  std::string result(text);
  for (char& c : result) {
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
  }
  return result;
}

// Of a weight, "0" to "1" with up to three decimals, the thousandfold. What is not one weighs nothing.
int thousandfold(std::string_view weight) {
  if (weight.empty() || weight.size() > 5 || (weight[0] != '0' && weight[0] != '1')) return 0;
  if (weight.size() > 1 && weight[1] != '.') return 0;
  int value = weight[0] - '0';
  for (std::size_t i = 2; i < 5; ++i) {
    const char digit = i < weight.size() ? weight[i] : '0';
    if (digit < '0' || digit > '9') return 0;
    value = value * 10 + (digit - '0');
  }
  return std::min(value, 1000);
}

struct MediaRange {
  std::string type, version;
  int weight = 1000;
};

MediaRange parse_media_range(std::string_view text) {
  MediaRange range;
  range.type = lower(cut(text, ';'));
  while (!text.empty()) {
    std::string_view value = cut(text, ';');
    const std::string name = lower(cut(value, '='));
    if (name == "q") range.weight = thousandfold(value);
    if (name == "version") range.version = value;
  }
  return range;
}

}  // namespace

const char* content_type(ExpositionFormat format) {
  return format == ExpositionFormat::kOpenMetrics
             ? "application/openmetrics-text; version=1.0.0; charset=utf-8"
             : "text/plain; version=0.0.4; charset=utf-8";
}

ExpositionFormat negotiate_format(std::string_view accept) {
  int open_metrics = 0, text = 0;
  while (!accept.empty()) {
    const MediaRange range = parse_media_range(cut(accept, ','));
    if (range.type == "application/openmetrics-text" &&
        (range.version.empty() || range.version == "1.0.0" || range.version == "0.0.1")) {
      open_metrics = std::max(open_metrics, range.weight);
    }
    if (range.type == "text/plain") text = std::max(text, range.weight);
  }
  return open_metrics > 0 && open_metrics >= text ? ExpositionFormat::kOpenMetrics
                                                  : ExpositionFormat::kPrometheusText;
}

void Exposition::comment(const char* keyword, std::string_view value) {
  text_ += "# ";
  text_ += keyword;
  text_ += ' ';
  text_ += family_name_;
  text_ += ' ';
  text_ += value;
  text_ += '\n';
}

void Exposition::begin(const MetricFamily& family) {
  sample_name_ = std::string(family.name) + sample_suffix(family.type);
  const bool is_open_metrics = format_ == ExpositionFormat::kOpenMetrics;
  family_name_ = is_open_metrics ? family.name : sample_name_;
  comment("TYPE", type_name(family.type, format_));
  if (is_open_metrics && *family.unit != '\0') comment("UNIT", family.unit);
  comment("HELP", family.help);
}

void Exposition::append_label(const Label& label) {
  text_ += label.name;
  text_ += "=\"";
  append_escaped(text_, label.value);
  text_ += '"';
}

void Exposition::sample(std::span<const Label> labels, std::uint64_t value) {
  text_ += sample_name_;
  text_ += '{';
  append_label({"pool", pool_});
  for (const Label& label : labels) {
    text_ += ',';
    append_label(label);
  }
  text_ += "} ";
  text_ += std::to_string(value);
  text_ += '\n';
}

void Exposition::single(const MetricFamily& family, std::uint64_t value) {
  begin(family);
  sample(std::span<const Label>(), value);
}

std::string Exposition::finish() {
  if (format_ == ExpositionFormat::kOpenMetrics) text_ += "# EOF\n";
  return std::move(text_);
}

}  // namespace cachalot::node
