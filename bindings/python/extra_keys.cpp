#include "extra_keys.h"

#include <cstdint>
#include <string>
#include <utility>

#include "error.h"
#include "numbers.h"
#include "sequence.h"

namespace cachalot::python {
namespace {

// The items of a list or tuple. A str is a sequence too, but none that is meant.
nb::object items_of(nb::handle object, const std::string& name, const char* expected) {
  if (!PyList_Check(object.ptr()) && !PyTuple_Check(object.ptr()))
    refuse_type(object, name + ": ", expected);
  return nb::steal(PySequence_Fast(object.ptr(), ""));
}

std::size_t count_of(const nb::object& items) {
  return static_cast<std::size_t>(fast_size(items));
}

nb::object item_of(const nb::object& items, std::size_t i) {
  return nb::borrow(fast_item(items, static_cast<Py_ssize_t>(i)));
}

ExtraKeyPart part_of(nb::handle part, const std::string& name) {
  PyObject* const object = part.ptr();
  if (PyUnicode_Check(object)) {
    Py_ssize_t bytes = 0;
    const char* const text = PyUnicode_AsUTF8AndSize(object, &bytes);
    if (text == nullptr) throw nb::python_error();  // a lone surrogate
    return std::string(text, static_cast<std::size_t>(bytes));
  }
  if (PyBytes_Check(object)) {
    const auto* const first = reinterpret_cast<const std::uint8_t*>(PyBytes_AsString(object));
    return std::vector<std::uint8_t>(first, first + PyBytes_Size(object));
  }
  if (!PyLong_Check(object) || PyBool_Check(object))
    refuse_type(part, name + ": ", "a str, bytes or int");
  int overflow = 0;
  const long long number = PyLong_AsLongLongAndOverflow(object, &overflow);
  if (overflow != 0) refuse("%.60s: %.40s is beyond 64 bits", name.c_str(), nb::str(part).c_str());
  return std::int64_t{number};
}

ExtraKey key_of(nb::handle object, const std::string& name) {
  const nb::object parts = items_of(object, name, "a tuple of str, bytes and int");
  ExtraKey key;
  for (std::size_t i = 0; i < count_of(parts); ++i) key.push_back(part_of(item_of(parts, i), name));
  return key;
}

}  // namespace

std::vector<ExtraKeys> extra_keys_of(nb::handle object, std::size_t blocks) {
  std::vector<ExtraKeys> all;
  if (object.is_none()) return all;
  const nb::object entries =
      items_of(object, "extra_keys", "a sequence with None or a sequence of tuples for each block");
  if (count_of(entries) > blocks) {
    refuse("extra_keys: has %zu entries, expected at most one for each of %zu blocks",
           count_of(entries), blocks);
  }
  for (std::size_t i = 0; i < count_of(entries); ++i) {
    const std::string name = "extra_keys: number " + std::to_string(i);
    const nb::object entry = item_of(entries, i);
    ExtraKeys& keys = all.emplace_back();
    if (entry.is_none()) continue;
    const nb::object tuples = items_of(entry, name, "None or a sequence of tuples");
    for (std::size_t k = 0; k < count_of(tuples); ++k)
      keys.push_back(key_of(item_of(tuples, k), name));
  }
  return all;
}

}  // namespace cachalot::python
