#include "trace/request/json_value.h"

#include <simdjson.h>

#include <charconv>
#include <new>

namespace cachalot::trace {
namespace {

namespace dom = simdjson::dom;

Error not_an_integer(const dom::element& value, const std::string& where) {
  return Error::make(Code::kBadInput, "%s: %s is not an unsigned 64-bit integer", where.c_str(),
                     shown_value(value).c_str());
}

bool is_hex_id(const dom::element& value, std::uint64_t& id) {
  std::string_view text;
  if (value.get(text) != simdjson::SUCCESS || text.size() != 16) return false;
  const auto [end, problem] = std::from_chars(text.data(), text.data() + text.size(), id, 16);
  return problem == std::errc() && end == text.data() + text.size();
}

}  // namespace

Error not_json(int error) {
  const auto code = static_cast<simdjson::error_code>(error);
  if (code == simdjson::MEMALLOC) throw std::bad_alloc();
  return Error::make(Code::kBadInput, "not valid JSON: %s",
                     code == simdjson::NUMBER_ERROR
                         ? "a number is malformed or needs more than 64 bits"
                         : simdjson::error_message(code));
}

Result<dom::object> object_of_line(dom::parser& parser, std::string_view line) {
  dom::element document;
  const auto error = parser.parse(line.data(), line.size(), false).get(document);
  if (error != simdjson::SUCCESS) {
    const Error problem = not_json(error);
    const std::size_t begin = line.find_first_not_of(" \t\r\n");
    const bool is_csv = begin != std::string_view::npos && line.find(',') != line.npos &&
                        line[begin] != '{' && line[begin] != '[';
    if (!is_csv) return problem;
    return Error::make(
        Code::kBadInput,
        "not valid JSON but, it seems, CSV: %s, expected a JSON object or the header "
        "of an azure or burstgpt trace",
        shown_text(line).c_str());
  }
  dom::object object;
  if (document.get(object) == simdjson::SUCCESS) return object;
  return Error::make(Code::kBadInput, "%s is not an object", shown_value(document).c_str());
}

Result<dom::element> field_of(const dom::object& object, const char* within,
                              std::string_view name) {
  dom::element found;
  int times = 0;
  for (const auto& [key, value] : object) {
    if (key != name) continue;
    found = value;
    ++times;
  }
  if (times == 1) return found;
  return Error::make(Code::kBadInput, "%s%s: %s", within, std::string(name).c_str(),
                     times == 0 ? "missing" : "stands there twice");
}

std::string shown_text(std::string_view text) {
  std::string shown = "\"";
  for (const char c : text.substr(0, 40)) {
    shown += static_cast<unsigned char>(c) < 0x20 || c == 0x7f ? '?' : c;
  }
  return shown + (text.size() > 40 ? "...\"" : "\"");
}

std::string shown_value(const dom::element& value) {
  switch (value.type()) {
    case dom::element_type::ARRAY:
      return "an array";
    case dom::element_type::OBJECT:
      return "an object";
    case dom::element_type::STRING:
      break;
    default:
      return simdjson::minify(value);
  }
  std::string_view text;
  if (value.get(text) != simdjson::SUCCESS) return "a string";
  return shown_text(text);
}

Result<std::uint64_t> read_integer(const dom::element& value, const std::string& where) {
  std::uint64_t number = 0;
  if (value.get(number) != simdjson::SUCCESS) return not_an_integer(value, where);
  return number;
}

Result<double> read_number(const dom::element& value, const std::string& where) {
  double number = 0;
  if (value.get(number) != simdjson::SUCCESS) {
    return Error::make(Code::kBadInput, "%s: %s is not a number", where.c_str(),
                       shown_value(value).c_str());
  }
  if (number >= 0) return number;
  return Error::make(Code::kBadInput, "%s: %s is negative", where.c_str(),
                     shown_value(value).c_str());
}

Status read_ids(const dom::element& value, const std::string& where,
                std::vector<std::uint64_t>& ids) {
  dom::array array;
  if (value.get(array) != simdjson::SUCCESS) {
    return Error::make(Code::kBadInput, "%s: %s is not an array", where.c_str(),
                       shown_value(value).c_str());
  }
  ids.clear();
  for (const dom::element& item : array) {
    std::uint64_t id = 0;
    if (item.get(id) != simdjson::SUCCESS && !is_hex_id(item, id)) {
      return not_an_integer(item, where + "[" + std::to_string(ids.size()) + "]");
    }
    ids.push_back(id);
  }
  return {};
}

Status check_number_of_ids(const char* ids_name, std::uint64_t ids, const char* input_name,
                           std::uint64_t input_tokens, std::uint64_t block_tokens) {
  if (block_tokens == 0) return {};
  const std::uint64_t whole = input_tokens / block_tokens;
  const std::uint64_t begun = whole + (input_tokens % block_tokens == 0 ? 0 : 1);
  if (ids == whole || ids == begun) return {};
  const std::string or_more = begun == whole ? "" : " or " + std::to_string(begun);
  return Error::make(Code::kBadInput,
                     "%s: %llu ids for %s %llu, expected %llu%s at %llu tokens a block; give "
                     "--block-tokens if it has others",
                     ids_name, static_cast<unsigned long long>(ids), input_name,
                     static_cast<unsigned long long>(input_tokens),
                     static_cast<unsigned long long>(whole), or_more.c_str(),
                     static_cast<unsigned long long>(block_tokens));
}

}  // namespace cachalot::trace
