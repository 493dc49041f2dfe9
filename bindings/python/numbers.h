// Sequences of numbers that callers pass: tokens, pages.
#pragma once

#include <nanobind/nanobind.h>

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "memory.h"

namespace cachalot::python {

// Numbers of 32 bits: those of an array of uint32 as they lie there, others converted.
// Raises InvalidArgumentError: a number that has more bits or a sign, an array of another dimension
// or type; TypeError: no sequence of numbers.
class Numbers {
 public:
  Numbers(nb::handle object, const char* name);
  std::span<const std::uint32_t> get() const { return numbers_; }

  // Of their own: what the caller does to the array meanwhile is not seen.
  static std::vector<std::uint32_t> copy(nb::handle object, const char* name);

 private:
  std::optional<Memory> memory_;
  std::vector<std::uint32_t> own_;
  std::span<const std::uint32_t> numbers_;
};

// An int from 0 to `most`. Raises InvalidArgumentError: below or above; TypeError: no int.
std::uint64_t whole_number(nb::handle object, const char* name, std::uint64_t most);
// The same of 32 bits, and where None is allowed.
std::uint32_t number(nb::handle object, const char* name);
// 1 to `most`.
std::uint32_t count(nb::handle object, const char* name, std::uint32_t most);
std::optional<std::uint32_t> optional_number(nb::handle object, const char* name);

// What was given where something else was expected: "pages: 'x' (str), expected an int".
[[noreturn]] void refuse_type(nb::handle object, const std::string& name, const char* expected);
// A str. Raises TypeError.
std::string text(nb::handle object, const char* name);
// A str, bytes or os.PathLike. Raises TypeError.
std::string path(nb::handle object, const char* name);

// Seconds, from 0 on. Raises InvalidArgumentError: negative, NaN, beyond a float; TypeError: no number.
double seconds(nb::handle object, const char* name);
std::optional<double> optional_seconds(nb::handle object, const char* name);
// None, and what no number of 64 bits says: kNoTimeout.
std::uint64_t nanoseconds(std::optional<double> seconds);

}  // namespace cachalot::python
