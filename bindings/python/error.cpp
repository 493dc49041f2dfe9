#include "error.h"

namespace cachalot::python {

nb::object foreign_text(std::string_view text) {
  return nb::steal(
      PyUnicode_DecodeUTF8(text.data(), static_cast<Py_ssize_t>(text.size()), "replace"));
}

void raise(const Error& error) {
  const nb::object table = nb::module_::import_("cachalot.errors").attr("CLASSES");
  const nb::object type = table[code_name(error.code)];
  const nb::object made = type(foreign_text(error.message));
  made.attr("os_error") = error.os_error;
  made.attr("detail") = error.detail;
  PyErr_SetObject(type.ptr(), made.ptr());
  throw nb::python_error();
}

}  // namespace cachalot::python
