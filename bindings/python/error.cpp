#include "error.h"

#include <cstring>

namespace cachalot::python {

void raise(const Error& error) {
  const nb::object table = nb::module_::import_("cachalot.errors").attr("CLASSES");
  const nb::object type = table[code_name(error.code)];
  // A truncated message may end inside a UTF-8 character.
  const nb::object text = nb::steal(PyUnicode_DecodeUTF8(
      error.message, static_cast<Py_ssize_t>(std::strlen(error.message)), "replace"));
  const nb::object made = type(text);
  made.attr("os_error") = error.os_error;
  made.attr("detail") = error.detail;
  PyErr_SetObject(type.ptr(), made.ptr());
  throw nb::python_error();
}

}  // namespace cachalot::python
