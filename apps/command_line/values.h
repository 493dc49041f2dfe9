// What the values of flags mean: numbers, sizes, block counts and lists.
#pragma once

#include <cachalot/result.h>

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "flags.h"

namespace cachalot::apps {

// The name of the validators of numbers: it tells that a flag takes them.
inline constexpr const char* kNumberValidator = "number";

// For Flag::transform: a whole decimal number within `low` to `high`. The library's own
// conversion wraps what is too large, and reads 010 as eight.
Validator number(std::uint64_t low, std::uint64_t high);

// The same for a number that need not be whole: digits and a point. The library's own takes nan for a number
// within any range, and reads 0x10 as sixteen.
Validator decimal(double low, double high);

// Sizes on the command line: "65536", "64KiB", "1.5GiB", "4MB" (powers of ten without the i).
// @errors kInvalidArgument, also where the bytes do not fit 63 bits
Result<std::uint64_t> parse_bytes(const std::string& flag, const std::string& text);

// For people: "1.22 GiB", "4096 bytes".
std::string bytes_text(std::uint64_t bytes);

// Block counts. @errors kInvalidArgument
Result<std::uint64_t> parse_blocks(const std::string& flag, const std::string& text);
// The same, or "inf" (0xffffffffffffffff).
Result<std::uint64_t> parse_blocks_or_inf(const std::string& flag, const std::string& text);

// "all" stands for every name of the list: another beside it would be ignored.
// @errors kInvalidArgument: there is one
Status check_all_is_alone(const char* flag, std::span<const std::string> names);
// The parts of all `texts`, which commas separate. @errors kInvalidArgument: a part is empty
Result<std::vector<std::string>> split_list(const std::string& flag,
                                            const std::vector<std::string>& texts);

// @errors kInvalidArgument: a value of the list is there twice
Status check_differ(const char* flag, std::span<const std::string> values);

// An error of this flag says so: "--flag: message".
template <typename T>
Result<T> named(const char* flag, Result<T> result) {
  if (result) return result;
  const Error& error = result.error();
  return Error::make(error.code, "%s: %s", flag, error.message);
}

}  // namespace cachalot::apps
