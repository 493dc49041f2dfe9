#include "base/uri.h"

#include <algorithm>
#include <charconv>
#include <cinttypes>
#include <cstring>

namespace cachalot::base {
namespace {

constexpr std::size_t kMostShown = 120;

int digit_of(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  if (c >= 'A' && c <= 'F') return c - 'A' + 10;
  return -1;
}

// "redis://user:secret@host" becomes "redis://user:…@host".
std::string without_password(std::string_view text) {
  std::string shown(text);
  const std::size_t start = shown.find("://");
  const std::size_t end = shown.find_first_of("?", start == std::string::npos ? 0 : start);
  const std::size_t at = shown.rfind('@', end);
  if (start != std::string::npos && at != std::string::npos && at > start + 3) {
    const std::size_t colon = shown.find(':', start + 3);
    if (colon < at) shown.replace(colon + 1, at - colon - 1, "…");
  }
  if (shown.size() > kMostShown) shown.resize(kMostShown);
  return shown;
}

// "redis://user:pa?ss@host": what stands before the "?" is no port.
bool has_question_in_password(std::string_view text) {
  const std::size_t start = text.find("://");
  if (start == std::string_view::npos) return false;
  text.remove_prefix(start + 3);
  const std::size_t question = text.find('?'), at = text.find('@'), colon = text.find(':');
  if (colon > question || at == std::string_view::npos || at < question || text.starts_with('['))
    return false;
  const std::string_view begun = text.substr(colon + 1, question - colon - 1);
  const std::size_t port = std::min(begun.find_first_not_of("0123456789"), begun.size());
  return port == 0 || (port < begun.size() && begun[port] != '/' && begun[port] != ',');
}

// Whether `name` is one of the words in `names`.
bool has_word(std::string_view names, std::string_view name) {
  if (names == "*") return true;
  while (!names.empty()) {
    const std::string_view word = names.substr(0, names.find(' '));
    if (word == name) return true;
    names.remove_prefix(std::min(names.size(), word.size() + 1));
  }
  return false;
}

}  // namespace

Result<std::string> decode_percent(std::string_view text) {
  std::string decoded;
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (text[i] != '%') {
      decoded += text[i];
      continue;
    }
    const int high = i + 2 < text.size() ? digit_of(text[i + 1]) : -1;
    const int low = i + 2 < text.size() ? digit_of(text[i + 2]) : -1;
    if (high < 0 || low < 0 || high + low == 0) {
      return Error::make(Code::kInvalidArgument,
                         "\"%.60s\": expected two hexadecimal digits after \"%%\", and not 00",
                         std::string(text).c_str());
    }
    decoded += static_cast<char>(high * 16 + low);
    i += 2;
  }
  return decoded;
}

std::string encode_percent(std::string_view text, bool keeps_slash) {
  constexpr char kDigits[] = "0123456789ABCDEF";
  std::string encoded;
  for (const char c : text) {
    const bool is_plain = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') ||
                          (c >= '0' && c <= '9') || std::strchr("-._~", c) != nullptr;
    if ((is_plain && c != '\0') || (c == '/' && keeps_slash)) {
      encoded += c;
      continue;
    }
    const auto byte = static_cast<unsigned char>(c);
    encoded += {'%', kDigits[byte >> 4], kDigits[byte & 15]};
  }
  return encoded;
}

Result<Uri> Uri::parse(std::string_view subject, std::string_view text) {
  Uri uri;
  uri.subject = subject;
  // Without the text, since all ways to cut it show a part of the password.
  if (has_question_in_password(text)) {
    return Error::make(Code::kInvalidArgument,
                       "%s: has a \"?\" between its user and its host, expected %%3F in a password",
                       uri.subject.c_str());
  }
  uri.shown = without_password(text);
  const std::size_t colon = text.find(':');
  if (colon == std::string_view::npos || colon == 0) {
    return Error::make(Code::kInvalidArgument,
                       "%s \"%s\": has no kind, expected KIND:PLACE such as file:/ssd/kv",
                       uri.subject.c_str(), uri.shown.c_str());
  }
  uri.scheme = text.substr(0, colon);
  const std::size_t question = text.find('?', colon);
  uri.place =
      text.substr(colon + 1, question == std::string_view::npos ? question : question - colon - 1);
  if (question == std::string_view::npos) return uri;
  std::string_view rest = text.substr(question + 1);
  while (!rest.empty()) {
    const std::string_view one = rest.substr(0, rest.find('&'));
    rest.remove_prefix(std::min(rest.size(), one.size() + 1));
    const std::size_t equals = one.find('=');
    if (equals == std::string_view::npos || equals == 0) {
      return Error::make(Code::kInvalidArgument,
                         "%s \"%s\": its parameter \"%.40s\" is not NAME=VALUE",
                         uri.subject.c_str(), uri.shown.c_str(), std::string(one).c_str());
    }
    CACHALOT_TRY_ASSIGN(std::string name, decode_percent(one.substr(0, equals)));
    CACHALOT_TRY_ASSIGN(std::string value, decode_percent(one.substr(equals + 1)));
    if (uri.find(name) != nullptr) {
      return Error::make(Code::kInvalidArgument, "%s \"%s\": has the parameter %.40s twice",
                         uri.subject.c_str(), uri.shown.c_str(), name.c_str());
    }
    uri.parameters.emplace_back(std::move(name), std::move(value));
  }
  return uri;
}

const std::string* Uri::find(std::string_view name) const {
  const auto at = std::find_if(parameters.begin(), parameters.end(),
                               [&](const auto& parameter) { return parameter.first == name; });
  return at == parameters.end() ? nullptr : &at->second;
}

Status Uri::check_parameters(std::string_view known) const {
  for (const auto& [name, value] : parameters) {
    if (has_word(known, name)) continue;
    return Error::make(Code::kInvalidArgument, "%s \"%s\": unknown parameter \"%.40s\"; %s%.*s",
                       subject.c_str(), shown.c_str(), name.c_str(),
                       known.empty() ? "expected none" : "known: ", static_cast<int>(known.size()),
                       known.data());
  }
  return {};
}

Result<bool> Uri::flag(std::string_view name, bool otherwise) const {
  CACHALOT_TRY_ASSIGN(const std::uint64_t value, number(name, otherwise ? 1 : 0, 0, 1));
  return value == 1;
}

Result<std::uint64_t> Uri::number(std::string_view name, std::uint64_t otherwise,
                                  std::uint64_t least, std::uint64_t most) const {
  const std::string* const text = find(name);
  if (text == nullptr) return otherwise;
  std::uint64_t value = 0;
  const char* const end = text->data() + text->size();
  const auto [stop, failed] = std::from_chars(text->data(), end, value);
  if (failed == std::errc() && stop == end && value >= least && value <= most) return value;
  return Error::make(Code::kInvalidArgument,
                     "%s \"%s\": %.*s is \"%.40s\", expected a number from %" PRIu64 " to %" PRIu64,
                     subject.c_str(), shown.c_str(), static_cast<int>(name.size()), name.data(),
                     text->c_str(), least, most);
}

Result<std::string> Uri::path() const {
  CACHALOT_TRY_ASSIGN(std::string decoded, decode_percent(place));
  if (!decoded.empty()) return decoded;
  return Error::make(Code::kInvalidArgument, "%s \"%s\": names no path", subject.c_str(),
                     shown.c_str());
}

}  // namespace cachalot::base
