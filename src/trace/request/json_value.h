// Strict reading of the values that traces are made of, with the words for what is wrong.
#pragma once

#include <cachalot/result.h>

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace simdjson::dom {
class element;
class object;
class parser;
}  // namespace simdjson::dom

namespace cachalot::trace {

// A value as messages show it: short, and without characters that move a terminal's cursor.
std::string shown_value(const simdjson::dom::element& value);
std::string shown_text(std::string_view text);

// `where` names the field. @errors kBadInput
Result<std::uint64_t> read_integer(const simdjson::dom::element& value, const std::string& where);
// Not below 0.
Result<double> read_number(const simdjson::dom::element& value, const std::string& where);
// Unsigned 64-bit integers, or such as 16 hexadecimal digits in a string.
Status read_ids(const simdjson::dom::element& value, const std::string& where,
                std::vector<std::uint64_t>& ids);

// The member called `name`, which must be there once. `within` is before its name in messages: "request.".
// @errors kBadInput
Result<simdjson::dom::element> field_of(const simdjson::dom::object& object, const char* within,
                                        std::string_view name);

// The object that is a whole line, behind which simdjson may read (LineReader::kPaddingBytes).
// @errors kBadInput: no JSON, with a word for a line of a CSV file; no object
Result<simdjson::dom::object> object_of_line(simdjson::dom::parser& parser, std::string_view line);

// What is wrong with a text that simdjson refuses; `error` is its code. Throws std::bad_alloc if it lacked memory, as
// containers do: the text may be right.
Error not_json(int error);

// There must be an id for each whole or begun block of the input.
Status check_number_of_ids(const char* ids_name, std::uint64_t ids, const char* input_name,
                           std::uint64_t input_tokens, std::uint64_t block_tokens);

}  // namespace cachalot::trace
