#include "numbers.h"

#include <cinttypes>
#include <cstring>
#include <limits>

#include "error.h"

namespace cachalot::python {
namespace {

constexpr std::uint64_t kMost = std::numeric_limits<std::uint32_t>::max();

template <class T>
void convert(const Memory& memory, const char* name, std::vector<std::uint32_t>& to) {
  const auto* at = static_cast<const std::byte*>(memory.data);
  for (std::size_t i = 0; i < to.size(); ++i, at += memory.strides[0]) {
    T number;
    std::memcpy(&number, at, sizeof number);
    if (number < T{0} || static_cast<std::uint64_t>(number) > kMost) {
      refuse("%s: number %zu is %" PRId64 ", expected 0 to 2^32 - 1", name, i,
             static_cast<std::int64_t>(number));
    }
    to[i] = static_cast<std::uint32_t>(number);
  }
}

std::vector<std::uint32_t> convert(const Memory& memory, const char* name) {
  std::vector<std::uint32_t> to(memory.items());
  switch (static_cast<int>(memory.item_bytes) * (memory.kind == 'i' ? -1 : 1)) {
    case 1:
      convert<std::uint8_t>(memory, name, to);
      break;
    case 2:
      convert<std::uint16_t>(memory, name, to);
      break;
    case 4:
      convert<std::uint32_t>(memory, name, to);
      break;
    case 8:
      convert<std::uint64_t>(memory, name, to);
      break;
    case -1:
      convert<std::int8_t>(memory, name, to);
      break;
    case -2:
      convert<std::int16_t>(memory, name, to);
      break;
    case -4:
      convert<std::int32_t>(memory, name, to);
      break;
    case -8:
      convert<std::int64_t>(memory, name, to);
      break;
    default:
      refuse("%s: integers of %" PRIu64 " bytes, expected at most 8", name, memory.item_bytes);
  }
  return to;
}

void check_array(const Memory& memory, const char* name) {
  if (memory.shape.size() != 1 || (memory.kind != 'u' && memory.kind != 'i')) {
    refuse("%s: an array of %s in %zu dimensions, expected integers in one", name,
           memory.dtype().c_str(), memory.shape.size());
  }
}

bool has_memory(nb::handle object) {
  return PyObject_CheckBuffer(object.ptr()) || nb::hasattr(object, "__dlpack__");
}

std::vector<std::uint32_t> from_sequence(nb::handle object, const char* name) {
  const nb::object items =
      nb::steal(PySequence_Fast(object.ptr(), "expected a sequence of integers"));
  if (!items.is_valid()) throw nb::python_error();
  std::vector<std::uint32_t> numbers(
      static_cast<std::size_t>(PySequence_Fast_GET_SIZE(items.ptr())));
  for (std::size_t i = 0; i < numbers.size(); ++i) {
    PyObject* const item = PySequence_Fast_GET_ITEM(items.ptr(), static_cast<Py_ssize_t>(i));
    int overflow = 0;
    const long long number =
        PyLong_AsLongLongAndOverflow(item, &overflow);  // takes NumPy's integers too
    if (number == -1 && overflow == 0 && PyErr_Occurred() != nullptr) throw nb::python_error();
    if (overflow != 0 || number < 0 || static_cast<std::uint64_t>(number) > kMost) {
      refuse("%s: number %zu is %.30s, expected 0 to 2^32 - 1", name, i, nb::repr(item).c_str());
    }
    numbers[i] = static_cast<std::uint32_t>(number);
  }
  return numbers;
}

}  // namespace

Numbers::Numbers(nb::handle object, const char* name) {
  if (PyList_CheckExact(object.ptr()) || !has_memory(object)) {
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
    own_ = convert(*memory_, name);
    numbers_ = own_;
  }
}

std::vector<std::uint32_t> Numbers::copy(nb::handle object, const char* name) {
  Numbers numbers(object, name);
  if (!numbers.own_.empty()) return std::move(numbers.own_);
  return {numbers.numbers_.begin(), numbers.numbers_.end()};
}

std::uint64_t nanoseconds(std::optional<double> seconds, std::uint64_t otherwise,
                          const char* name) {
  if (!seconds) return otherwise;
  if (!(*seconds >= 0)) refuse("%s: %g s, expected a time from 0 on, or None", name, *seconds);
  const double ns = *seconds * 1e9;
  return ns >= 1e19 ? otherwise : static_cast<std::uint64_t>(ns);
}

}  // namespace cachalot::python
