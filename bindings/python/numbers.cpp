#include "numbers.h"

#include <cinttypes>
#include <cmath>
#include <cstring>
#include <limits>
#include <string>

#include "error.h"
#include "sequence.h"

namespace cachalot::python {
namespace {

constexpr std::uint64_t kMost = std::numeric_limits<std::uint32_t>::max();

// The object's repr(), cut off if it is long; a placeholder if Python refuses to print it.
std::string text_of(nb::handle object) {
  const nb::object text = nb::steal(PyObject_Repr(object.ptr()));
  const nb::object start =
      nb::steal(text.is_valid() ? PyUnicode_Substring(text.ptr(), 0, 50) : nullptr);
  const char* const bytes =
      start.is_valid() ? PyUnicode_AsUTF8AndSize(start.ptr(), nullptr) : nullptr;
  if (bytes != nullptr) return bytes;
  if (!PyErr_ExceptionMatches(PyExc_Exception)) throw nb::python_error();
  PyErr_Clear();
  return PyLong_Check(object.ptr()) ? "a number of thousands of digits" : "something";
}

}  // namespace

void refuse_type(nb::handle object, const std::string& what, const char* expected) {
  std::string type = nb::type_name(object.type()).c_str();
  type.erase(0, type.rfind('.') + 1);  // removes the module; npos + 1 is 0
  throw nb::type_error((what + text_of(object) + " (" + type + "), expected " + expected).c_str());
}

namespace {

// Also accepts NumPy's integers. `what`: the error message up to the value.
std::uint64_t to_number(nb::handle object, const std::string& what, std::uint64_t most,
                        std::uint64_t least = 0) {
  const nb::object index = nb::steal(PyNumber_Index(object.ptr()));
  if (!index.is_valid()) {
    clear_type_error();
    refuse_type(object, what, "an int");
  }
  int overflow = 0;
  const long long small = PyLong_AsLongLongAndOverflow(index.ptr(), &overflow);
  const auto positive = static_cast<std::uint64_t>(small);
  if (overflow == 0 && small >= 0 && positive >= least && positive <= most) return positive;
  if (overflow > 0) {
    const unsigned long long large = PyLong_AsUnsignedLongLong(index.ptr());
    const bool fits = PyErr_Occurred() == nullptr;
    PyErr_Clear();
    if (fits && large <= most) return large;
  }
  if (least != 0) {  // the same words as the library's message
    refuse("%s%s is not within %" PRIu64 " to %" PRIu64, what.c_str(), text_of(object).c_str(),
           least, most);
  }
  refuse("%s%s, expected 0 to %" PRIu64, what.c_str(), text_of(object).c_str(), most);
}

// @param stride  from one number to the next
template <class T>
void convert(const Memory& memory, std::int64_t stride, const char* name,
             std::vector<std::uint32_t>& to) {
  const auto* at = static_cast<const std::byte*>(memory.data);
  for (std::size_t i = 0; i < to.size(); ++i, at += stride) {
    T number;
    std::memcpy(&number, at, sizeof number);
    if (number < T{0} || static_cast<std::uint64_t>(number) > kMost) {
      refuse("%s: number %zu is %s, expected 0 to %" PRIu64, name, i,
             std::to_string(number).c_str(), kMost);
    }
    to[i] = static_cast<std::uint32_t>(number);
  }
}

std::vector<std::uint32_t> convert(const Memory& memory, std::int64_t stride, const char* name) {
  std::vector<std::uint32_t> to(memory.items());
  switch (static_cast<int>(memory.item_bytes) * (memory.kind == 'i' ? -1 : 1)) {
    case 1:
      convert<std::uint8_t>(memory, stride, name, to);
      break;
    case 2:
      convert<std::uint16_t>(memory, stride, name, to);
      break;
    case 4:
      convert<std::uint32_t>(memory, stride, name, to);
      break;
    case 8:
      convert<std::uint64_t>(memory, stride, name, to);
      break;
    case -1:
      convert<std::int8_t>(memory, stride, name, to);
      break;
    case -2:
      convert<std::int16_t>(memory, stride, name, to);
      break;
    case -4:
      convert<std::int32_t>(memory, stride, name, to);
      break;
    case -8:
      convert<std::int64_t>(memory, stride, name, to);
      break;
    default:
      refuse("%s: integers of %" PRIu64 " bytes, expected at most 8", name, memory.item_bytes);
  }
  return to;
}

void check_array(const Memory& memory, const char* name) {
  if (memory.shape.size() != 1 || (memory.kind != 'u' && memory.kind != 'i') || memory.is_swapped) {
    refuse("%s: %s, expected integers in one dimension, in this machine's byte order", name,
           memory.text().c_str());
  }
}

std::vector<std::uint32_t> from_sequence(nb::handle object, const char* name) {
  const nb::object items =
      nb::steal(PySequence_Fast(object.ptr(), "expected a sequence of integers"));
  if (!items.is_valid()) {
    clear_type_error();
    refuse_type(object, std::string(name) + ": ", "a sequence of integers");
  }
  std::vector<std::uint32_t> numbers(static_cast<std::size_t>(fast_size(items)));
  for (std::size_t i = 0; i < numbers.size(); ++i) {
    const auto count = static_cast<std::size_t>(fast_size(items));
    if (count != numbers.size()) {  // an item's __index__ may do anything
      refuse("%s: has %zu numbers now, expected the %zu that it had when the call began", name,
             count, numbers.size());
    }
    const nb::handle item = fast_item(items, static_cast<Py_ssize_t>(i));
    // The common case first: thousands of tokens.
    if (PyLong_CheckExact(item.ptr())) {
      int overflow = 0;
      const long long number = PyLong_AsLongLongAndOverflow(item.ptr(), &overflow);
      if (overflow == 0 && number >= 0 && static_cast<std::uint64_t>(number) <= kMost) {
        numbers[i] = static_cast<std::uint32_t>(number);
        continue;
      }
    }
    const nb::object held = nb::borrow(item);
    numbers[i] = static_cast<std::uint32_t>(
        to_number(held, std::string(name) + ": number " + std::to_string(i) + " is ", kMost));
  }
  return numbers;
}

}  // namespace

bool is_array(nb::handle object) {
  return !PyList_CheckExact(object.ptr()) &&
         (PyObject_CheckBuffer(object.ptr()) || nb::hasattr(object, "__dlpack__"));
}

Numbers::Numbers(nb::handle object, const char* name) {
  if (!is_array(object)) {
    own_ = from_sequence(object, name);
    numbers_ = own_;
    return;
  }
  memory_ = Memory::of(object, name);
  check_array(*memory_, name);
  const bool is_plain =
      memory_->kind == 'u' && memory_->item_bytes == 4 && memory_->is_contiguous &&
      reinterpret_cast<std::uintptr_t>(memory_->data) % alignof(std::uint32_t) == 0;
  if (is_plain) {
    numbers_ = {static_cast<const std::uint32_t*>(memory_->data), memory_->items()};
  } else {
    own_ = convert(*memory_, memory_->strides[0], name);
    numbers_ = own_;
  }
}

std::vector<std::uint32_t> Numbers::copy(nb::handle object, const char* name) {
  Numbers numbers(object, name);
  if (!numbers.own_.empty()) return std::move(numbers.own_);
  return {numbers.numbers_.begin(), numbers.numbers_.end()};
}

std::vector<std::uint32_t> Numbers::copy_cube(const Memory& memory, const char* name) {
  if (memory.shape.size() != 3 || !memory.is_contiguous || memory.is_swapped ||
      (memory.kind != 'u' && memory.kind != 'i')) {
    refuse(
        "%s: %s, expected integers in three dimensions, contiguous, in this machine's byte order",
        name, memory.text().c_str());
  }
  return convert(memory, static_cast<std::int64_t>(memory.item_bytes), name);
}

std::string text(nb::handle object, const char* name) {
  Py_ssize_t size = 0;
  const char* const bytes =
      PyUnicode_Check(object.ptr()) ? PyUnicode_AsUTF8AndSize(object.ptr(), &size) : nullptr;
  if (bytes != nullptr) return {bytes, static_cast<std::size_t>(size)};
  if (PyErr_Occurred() != nullptr) throw nb::python_error();  // not valid Unicode
  refuse_type(object, std::string(name) + ": ", "a str");
}

std::string path(nb::handle object, const char* name) {
  const nb::object given = nb::steal(PyOS_FSPath(object.ptr()));
  if (!given.is_valid()) {
    clear_type_error();
    refuse_type(object, std::string(name) + ": ", "a path");
  }
  // The library rejects wrong paths, also those with a zero byte.
  const nb::object bytes =
      PyBytes_Check(given.ptr()) ? given : nb::steal(PyUnicode_EncodeFSDefault(given.ptr()));
  if (!bytes.is_valid()) throw nb::python_error();
  return {PyBytes_AsString(bytes.ptr()), static_cast<std::size_t>(PyBytes_Size(bytes.ptr()))};
}

std::uint64_t whole_number(nb::handle object, const char* name, std::uint64_t most) {
  return to_number(object, std::string(name) + ": ", most);
}

std::uint32_t number(nb::handle object, const char* name) {
  return static_cast<std::uint32_t>(whole_number(object, name, kMost));
}

std::uint32_t count(nb::handle object, const char* name, std::uint32_t most) {
  return static_cast<std::uint32_t>(to_number(object, std::string(name) + ": ", most, 1));
}

std::optional<std::uint32_t> optional_number(nb::handle object, const char* name) {
  if (object.is_none()) return std::nullopt;
  return number(object, name);
}

double seconds(nb::handle object, const char* name) {
  const double value = PyFloat_AsDouble(object.ptr());
  if (value == -1 && PyErr_Occurred() != nullptr) {
    if (PyErr_ExceptionMatches(PyExc_OverflowError)) {
      PyErr_Clear();
      refuse("%s: %s s, expected a time that fits a float", name, text_of(object).c_str());
    }
    clear_type_error();
    refuse_type(object, std::string(name) + ": ", "a number of seconds");
  }
  if (!(value >= 0)) refuse("%s: %g s, expected 0 or more", name, value);
  return value;
}

std::optional<double> optional_seconds(nb::handle object, const char* name) {
  if (object.is_none()) return std::nullopt;
  return seconds(object, name);
}

std::uint64_t nanoseconds(std::optional<double> seconds) {
  const double ns = seconds.value_or(HUGE_VAL) * 1e9;
  return ns >= 1e19 ? ~std::uint64_t{0} : static_cast<std::uint64_t>(ns);
}

}  // namespace cachalot::python
