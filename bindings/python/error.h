// Results become return values or exceptions of cachalot.errors, their messages unchanged.
#pragma once

#include <cachalot/result.h>
#include <nanobind/nanobind.h>

#include <string>
#include <utility>

namespace cachalot::python {

namespace nb = nanobind;

// Raises the class that is named after the error's code. @threads holds the GIL
[[noreturn]] void raise(const Error& error);

// kInvalidArgument, in printf's way.
template <class... Arguments>
[[noreturn]] void refuse(const char* format, Arguments... arguments) {
  raise(Error::make(Code::kInvalidArgument, format, arguments...));
}

// What an object holds whose type is known to be T's. Raises TypeError: a subclass did not call __init__.
template <class T>
T& instance_of(nb::handle object, const char* name) {
  if (!nb::inst_ready(object)) {
    throw nb::type_error((std::string(name) + ": its __init__ was not called").c_str());
  }
  return *nb::inst_ptr<T>(object);
}

// After a conversion that failed: a TypeError is put aside, for ours that names the argument. What else the
// object's own methods raised (KeyboardInterrupt, too) goes on.
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
