#include "sched/calibration/flat_yaml.h"

#include <charconv>
#include <cmath>
#include <utility>

#include "trace/file/line_reader.h"

namespace cachalot::sched {
namespace {

std::string_view trimmed(std::string_view text) {
  const std::size_t first = text.find_first_not_of(" \t\r");
  if (first == std::string_view::npos) return {};
  return text.substr(first, text.find_last_not_of(" \t\r") - first + 1);
}

std::string unquoted(std::string_view text) {
  text = trimmed(text);
  if (text.size() >= 2 && (text.front() == '\'' || text.front() == '"') &&
      text.back() == text.front()) {
    text = text.substr(1, text.size() - 2);
  }
  return std::string(text);
}

Result<double> parse_number(const std::string& text, const Error& error) {
  double value = 0;
  const char* const end = text.data() + text.size();
  const auto [stop, problem] = std::from_chars(text.data(), end, value);
  if (problem == std::errc() && stop == end && !text.empty() && std::isfinite(value)) return value;
  return error;
}

}  // namespace

Result<FlatYaml> FlatYaml::read(const std::string& path) {
  CACHALOT_TRY_ASSIGN(trace::LineReader lines, trace::LineReader::open(path));
  FlatYaml yaml;
  yaml.shown_path_ = trace::shown_path(path);
  std::vector<std::pair<std::size_t, std::string>> parents;  // (indentation, key)
  for (;;) {
    CACHALOT_TRY_ASSIGN(const trace::LineReader::Found found, lines.next());
    if (found == trace::LineReader::Found::kEnd) return yaml;
    const std::string_view line = lines.line();
    const std::string_view content = trimmed(line);
    if (content.empty() || content.front() == '#' || content == "---") continue;
    const std::size_t indentation = line.find_first_not_of(' ');
    const std::size_t colon = content.find(':');
    const bool ends_key = colon != std::string_view::npos &&
                          (colon + 1 == content.size() || content[colon + 1] == ' ');
    if (found == trace::LineReader::Found::kTooLong || !ends_key || content.front() == '-') {
      return Error::make(
          Code::kBadInput, "%s:%llu: \"%.40s\", expected \"key: value\" or \"key: [a, b]\"",
          yaml.shown_path_.c_str(), static_cast<unsigned long long>(lines.line_number()),
          std::string(content).c_str());
    }
    while (!parents.empty() && parents.back().first >= indentation) parents.pop_back();
    std::string full;
    for (const auto& [_, key] : parents) full += key + ".";
    const std::string key(content.substr(0, colon));
    const std::string_view value = trimmed(content.substr(colon + 1));
    full += key;
    if (value.empty()) {
      parents.emplace_back(indentation, key);
    } else if (!yaml.values_.emplace(full, value).second) {
      return Error::make(Code::kBadInput, "%s:%llu: %s is there twice", yaml.shown_path_.c_str(),
                         static_cast<unsigned long long>(lines.line_number()), full.c_str());
    }
  }
}

Error FlatYaml::wrong(const std::string& path, const std::string& expected) const {
  const auto found = values_.find(path);
  if (found == values_.end()) {
    return Error::make(Code::kBadInput, "%s: no %s, expected %s", shown_path_.c_str(), path.c_str(),
                       expected.c_str());
  }
  return Error::make(Code::kBadInput, "%s: %s is \"%.40s\", expected %s", shown_path_.c_str(),
                     path.c_str(), found->second.c_str(), expected.c_str());
}

Result<std::string> FlatYaml::text(const std::string& path) const {
  const auto found = values_.find(path);
  if (found == values_.end()) return wrong(path, "a value");
  return unquoted(found->second);
}

Result<double> FlatYaml::number(const std::string& path) const {
  if (!has(path)) return wrong(path, "a number");
  return parse_number(unquoted(values_.at(path)), wrong(path, "a number"));
}

Result<bool> FlatYaml::boolean(const std::string& path) const {
  if (has(path) && values_.at(path) == "true") return true;
  if (has(path) && values_.at(path) == "false") return false;
  return wrong(path, "true or false");
}

Result<std::vector<std::string>> FlatYaml::list(const std::string& path) const {
  const auto found = values_.find(path);
  if (found == values_.end() || found->second.size() < 2 || found->second.front() != '[' ||
      found->second.back() != ']') {
    return wrong(path, "a list in brackets");
  }
  std::string_view rest = std::string_view(found->second).substr(1, found->second.size() - 2);
  std::vector<std::string> values;
  while (!trimmed(rest).empty()) {
    const std::size_t comma = rest.find(',');
    values.push_back(unquoted(rest.substr(0, comma)));
    rest = comma == std::string_view::npos ? std::string_view() : rest.substr(comma + 1);
  }
  return values;
}

Result<std::vector<double>> FlatYaml::numbers(const std::string& path) const {
  CACHALOT_TRY_ASSIGN(const std::vector<std::string> texts, list(path));
  std::vector<double> values;
  for (const std::string& text : texts) {
    CACHALOT_TRY_ASSIGN(const double value, parse_number(text, wrong(path, "a list of numbers")));
    values.push_back(value);
  }
  return values;
}

}  // namespace cachalot::sched
