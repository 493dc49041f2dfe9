// A line of a CSV file without quotes, as fields; and the numbers in them.
#pragma once

#include <cachalot/result.h>

#include <charconv>
#include <cstdint>
#include <span>
#include <string_view>

#include "trace/request/json_value.h"

namespace cachalot::trace {

// Whether the line has exactly fields.size() fields, which are then filled in.
inline bool split_fields(std::string_view line, std::span<std::string_view> fields) {
  for (std::size_t i = 0; i < fields.size(); ++i) {
    const std::size_t comma = line.find(',');
    const bool is_last = i + 1 == fields.size();
    if ((comma == std::string_view::npos) != is_last) return false;
    fields[i] = line.substr(0, comma);
    if (!is_last) line.remove_prefix(comma + 1);
  }
  return true;
}

// @errors kBadInput
inline Result<std::uint64_t> csv_integer(std::string_view text, const char* name) {
  std::uint64_t number = 0;
  const auto [end, problem] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (problem == std::errc() && end == text.data() + text.size() && !text.empty()) return number;
  return Error::make(Code::kBadInput, "%s: %s is not an unsigned 64-bit integer", name,
                     shown_text(text).c_str());
}

}  // namespace cachalot::trace
