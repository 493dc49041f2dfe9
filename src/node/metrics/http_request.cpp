#include "node/metrics/http_request.h"

#include <algorithm>

namespace cachalot::node {
namespace {

// Up to `end`, which is taken off, too.
std::string_view take(std::string_view& text, char end) {
  const std::size_t at = std::min(text.find(end), text.size());
  const std::string_view taken = text.substr(0, at);
  text.remove_prefix(std::min(at + 1, text.size()));
  return taken;
}

std::string_view take_line(std::string_view& text) {
  std::string_view line = take(text, '\n');
  if (line.ends_with('\r')) line.remove_suffix(1);
  return line;
}

std::string_view trim(std::string_view text) {
  const auto is_space = [](char c) { return c == ' ' || c == '\t'; };
  while (!text.empty() && is_space(text.front())) text.remove_prefix(1);
  while (!text.empty() && is_space(text.back())) text.remove_suffix(1);
  return text;
}

bool is_name(std::string_view text, std::string_view lower_case) {
  return std::equal(
      text.begin(), text.end(), lower_case.begin(), lower_case.end(),
      [](char a, char b) { return (a >= 'A' && a <= 'Z' ? a + ('a' - 'A') : a) == b; });
}

std::string_view path_of(std::string_view target) {
  constexpr std::string_view kScheme = "http://";  // as a proxy is asked
  if (target.starts_with(kScheme)) {
    target.remove_prefix(kScheme.size());
    target.remove_prefix(std::min(target.find('/'), target.size()));
  }
  return target.substr(0, target.find('?'));
}

}  // namespace

std::optional<std::size_t> find_end_of_head(std::string_view received) {
  for (std::size_t at = 0; (at = received.find('\n', at)) != std::string_view::npos;) {
    ++at;
    if (received.substr(at).starts_with("\n")) return at + 1;
    if (received.substr(at).starts_with("\r\n")) return at + 2;
  }
  return {};
}

ParsedRequest parse_request(std::string_view head) {
  std::string_view line = take_line(head);
  const std::string_view method = take(line, ' '), target = take(line, ' '), version = line;
  if (method.empty() || target.empty() || !version.starts_with("HTTP/")) return {.status = 400};
  if (!version.starts_with("HTTP/1.")) return {.status = 505};
  ParsedRequest parsed;
  while (!head.empty()) {
    std::string_view value = take_line(head);
    if (value.empty()) break;
    if (value.find(':') == std::string_view::npos) return {.status = 400};
    const std::string_view name = take(value, ':');
    value = trim(value);
    if (is_name(name, "accept")) {
      parsed.request.accept.append(value).append(",");
    } else if (is_name(name, "transfer-encoding") ||
               (is_name(name, "content-length") && value != "0")) {
      return {.status = 413};
    }
  }
  parsed.request.path = path_of(target);
  parsed.request.is_head = method == "HEAD";
  if (method != "GET" && method != "HEAD") parsed.status = 405;
  return parsed;
}

}  // namespace cachalot::node
