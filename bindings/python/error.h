// Converts Results to return values or exceptions of cachalot.errors with the same message.
#pragma once

#include <cachalot/result.h>
#include <nanobind/nanobind.h>

#include <string>
#include <string_view>
#include <utility>

namespace cachalot::python {

namespace nb = nanobind;

// Text that a peer may have written, or a message that quotes it or was cut inside a character: what is not UTF-8 is
// replaced. nanobind's own conversions raise an error there.
nb::object foreign_text(std::string_view text);

// Raises the exception class of the error's code. @threads with the GIL
[[noreturn]] void raise(const Error& error);

// Raises InvalidArgumentError with a printf-style message.
template <class... Arguments>
[[noreturn]] void refuse(const char* format, Arguments... arguments) {
  raise(Error::make(Code::kInvalidArgument, format, arguments...));
}

// The C++ object inside an object of T's Python type. Raises TypeError: a subclass did not call __init__.
template <class T>
T& instance_of(nb::handle object, const char* name) {
  if (!nb::inst_ready(object)) {
    throw nb::type_error((std::string(name) + ": its __init__ was not called").c_str());
  }
  return *nb::inst_ptr<T>(object);
}

// After a failed conversion: clears a TypeError, because the caller raises one that names the argument. Other
// exceptions of the object's methods (KeyboardInterrupt, too) propagate.
inline void clear_type_error() {
  if (!PyErr_ExceptionMatches(PyExc_TypeError)) throw nb::python_error();
  PyErr_Clear();
}

template <class T>
T value_of(Result<T> result) {
  if (!result) raise(result.error());
  return *std::move(result);
}
inline void check(const Status& status) {
  if (!status) raise(status.error());
}

}  // namespace cachalot::python
