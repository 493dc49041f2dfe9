// Converts numbers and sequences of numbers: tokens, pages.
#pragma once

#include <nanobind/nanobind.h>

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "memory.h"

namespace cachalot::python {

// Whether it has memory of its own: no list.
bool is_array(nb::handle object);

// A sequence of 32-bit numbers: an array of uint32 is used without a copy, others are converted.
// Raises InvalidArgumentError: a negative or larger number, an array of another dimension or type;
// TypeError: no sequence of numbers.
class Numbers {
 public:
  Numbers(nb::handle object, const char* name);
  std::span<const std::uint32_t> get() const { return numbers_; }

  // A copy: later changes of the array have no effect.
  static std::vector<std::uint32_t> copy(nb::handle object, const char* name);
  // All numbers of an array of three dimensions, the last one fastest.
  static std::vector<std::uint32_t> copy_cube(const Memory& memory, const char* name);

 private:
  std::optional<Memory> memory_;
  std::vector<std::uint32_t> own_;
  std::span<const std::uint32_t> numbers_;
};

// An int from 0 to `most`. Raises InvalidArgumentError: below or above; TypeError: no int.
std::uint64_t whole_number(nb::handle object, const char* name, std::uint64_t most);
// The same for 32 bits; and with None allowed.
std::uint32_t number(nb::handle object, const char* name);
// 1 to `most`.
std::uint32_t count(nb::handle object, const char* name, std::uint32_t most);
std::optional<std::uint32_t> optional_number(nb::handle object, const char* name);

// The message for a wrong argument: "pages: 'x' (str), expected an int".
[[noreturn]] void refuse_type(nb::handle object, const std::string& name, const char* expected);
// A str. Raises TypeError.
std::string text(nb::handle object, const char* name);
// A str, bytes or os.PathLike. Raises TypeError.
std::string path(nb::handle object, const char* name);

// Seconds, from 0 on. Raises InvalidArgumentError: negative, NaN, beyond a float; TypeError: no number.
double seconds(nb::handle object, const char* name);
std::optional<double> optional_seconds(nb::handle object, const char* name);
// None and values beyond 64 bits: kNoTimeout.
std::uint64_t nanoseconds(std::optional<double> seconds);

}  // namespace cachalot::python
