// Results become return values or exceptions of cachalot.errors, their messages unchanged.
#pragma once

#include <cachalot/result.h>
#include <nanobind/nanobind.h>

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

template <class T>
T value_of(Result<T> result) {
  if (!result) raise(result.error());
  return *std::move(result);
}
inline void check(const Status& status) {
  if (!status) raise(status.error());
}

}  // namespace cachalot::python
