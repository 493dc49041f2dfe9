#include "trace/allocation/alloc_event.h"

#include <charconv>
#include <cinttypes>
#include <limits>

namespace cachalot::trace {
namespace {

constexpr const char* kExpected = R"(expected "a ID BYTES", "f ID" or "m TEXT")";

bool is_space(char c) {
  return c == ' ' || c == '\t' || c == '\r';
}

// Takes the next field off the line; empty at its end.
std::string_view take_field(std::string_view& line) {
  std::size_t begin = 0;
  while (begin < line.size() && is_space(line[begin])) ++begin;
  std::size_t end = begin;
  while (end < line.size() && !is_space(line[end])) ++end;
  const std::string_view field = line.substr(begin, end - begin);
  line.remove_prefix(end);
  return field;
}

// Text of a file as a message may show it.
std::string shown(std::string_view text) {
  constexpr std::size_t kShownBytes = 40;
  std::string result(text.substr(0, kShownBytes));
  for (char& c : result) {
    if (c < ' ' || c > '~') c = '?';
  }
  return text.size() > kShownBytes ? result + "..." : result;
}

// The usual case of take_number: up to 19 digits behind a space. Takes nothing where it is another.
bool take_short_number(std::string_view& line, std::uint64_t& number) {
  constexpr std::size_t kSafeDigits = 19;  // below 2^64, whatever they are
  std::size_t at = 0;
  while (at < line.size() && line[at] == ' ') ++at;
  const std::size_t begin = at;
  std::uint64_t value = 0;
  for (; at < line.size() && line[at] >= '0' && line[at] <= '9'; ++at) {
    value = value * 10 + static_cast<std::uint64_t>(line[at] - '0');
  }
  if (at == begin || at - begin > kSafeDigits) return false;
  if (at < line.size() && line[at] != ' ') return false;
  line.remove_prefix(at);
  number = value;
  return true;
}

Status take_number(std::string_view& line, const char* name, std::uint64_t low, std::uint64_t high,
                   std::uint64_t& number) {
  const std::string_view whole = line;
  if (take_short_number(line, number) && number >= low && number <= high) [[likely]]
    return {};
  line = whole;
  const std::string_view field = take_field(line);
  const char* const end = field.data() + field.size();
  const auto [stop, problem] = std::from_chars(field.data(), end, number);
  if (problem == std::errc() && stop == end && number >= low && number <= high) [[likely]] {
    return {};
  }
  if (field.empty()) return Error::make(Code::kBadInput, "%s: missing, %s", name, kExpected);
  return Error::make(Code::kBadInput, "%s: \"%s\", expected %" PRIu64 " to %" PRIu64, name,
                     shown(field).c_str(), low, high);
}

Status take_end(std::string_view& line) {
  if (line.empty()) [[likely]]
    return {};
  const std::string_view field = take_field(line);
  if (field.empty()) [[likely]]
    return {};
  return Error::make(Code::kBadInput, "\"%s\" stands after the last field, %s",
                     shown(field).c_str(), kExpected);
}

Status parse_allocation(std::string_view fields, AllocEvent& event) {
  event.kind = AllocKind::kAllocate;
  event.stream = 0;
  constexpr std::uint64_t kMost = std::numeric_limits<std::uint64_t>::max();
  CACHALOT_TRY(take_number(fields, "ID", 0, kMost, event.id));
  CACHALOT_TRY(take_number(fields, "BYTES", 1, kMaxAllocBytes, event.bytes));
  if (fields.empty()) return {};
  std::string_view rest = fields;
  if (take_field(rest).empty()) return {};
  std::uint64_t stream = 0;
  CACHALOT_TRY(take_number(fields, "STREAM", 0, kMaxAllocStream, stream));
  event.stream = static_cast<std::uint32_t>(stream);
  return take_end(fields);
}

Status parse_free(std::string_view fields, AllocEvent& event) {
  event.kind = AllocKind::kFree;
  constexpr std::uint64_t kMost = std::numeric_limits<std::uint64_t>::max();
  CACHALOT_TRY(take_number(fields, "ID", 0, kMost, event.id));
  return take_end(fields);
}

Status parse_mark(std::string_view text, AllocEvent& event) {
  while (!text.empty() && is_space(text.front())) text.remove_prefix(1);
  while (!text.empty() && is_space(text.back())) text.remove_suffix(1);
  event.kind = AllocKind::kMark;
  event.text = text;
  return {};
}

void append_number(std::uint64_t number, std::string& to) {
  char text[24];
  to.append(text, std::to_chars(text, text + sizeof text, number).ptr);
}

}  // namespace

Result<bool> parse_alloc_line(std::string_view line, AllocEvent& event) {
  if (line.size() > kMaxAllocLineBytes) {
    return Error::make(Code::kBadInput, "the line has %zu bytes, expected at most %zu", line.size(),
                       kMaxAllocLineBytes);
  }
  const std::string_view kind = take_field(line);
  if (kind.empty() || kind.front() == '#') return false;
  if (kind == "a") {
    CACHALOT_TRY(parse_allocation(line, event));
  } else if (kind == "f") {
    CACHALOT_TRY(parse_free(line, event));
  } else if (kind == "m") {
    CACHALOT_TRY(parse_mark(line, event));
  } else {
    return Error::make(Code::kBadInput, "\"%s\" is no event, %s", shown(kind).c_str(), kExpected);
  }
  return true;
}

void append_alloc_line(const AllocEvent& event, std::string& to) {
  if (event.kind == AllocKind::kMark) {
    to += "m ";
    to += event.text.substr(0, event.text.find('\n')).substr(0, kMaxAllocLineBytes - 2);
  } else {
    to += event.kind == AllocKind::kAllocate ? "a " : "f ";
    append_number(event.id, to);
  }
  if (event.kind == AllocKind::kAllocate) {
    to += ' ';
    append_number(event.bytes, to);
    if (event.stream != 0) append_number(event.stream, to += ' ');
  }
  to += '\n';
}

}  // namespace cachalot::trace
