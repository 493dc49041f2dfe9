// Numbers on the command line, read strictly: the library's own conversion wraps what is too large,
// and reads 010 as eight.
#pragma once

#include <CLI/CLI.hpp>
#include <charconv>
#include <cstdint>
#include <string>

namespace cachalot::llama {

// For CLI::Option::transform: a whole decimal number within `low` to `high`.
inline CLI::Validator whole_number(std::uint64_t low, std::uint64_t high) {
  const std::string range = std::to_string(low) + " to " + std::to_string(high);
  return CLI::Validator(
      [low, high, range](std::string& text) -> std::string {
        std::uint64_t value = 0;
        const char* const end = text.data() + text.size();
        const auto [stop, error] = std::from_chars(text.data(), end, value);
        if (error != std::errc() || stop != end || value < low || value > high) {
          return "\"" + text.substr(0, 60) + "\" is not a whole number from " + range;
        }
        text = std::to_string(value);
        return "";
      },
      high == UINT64_MAX ? "" : range);
}

}  // namespace cachalot::llama
