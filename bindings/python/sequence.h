#pragma once

#include <nanobind/nanobind.h>

namespace cachalot::python {

// Size and items of what PySequence_Fast() returned, a list or a tuple. Python's own macros for them are not in the ABI
// that wheels keep to.
inline Py_ssize_t fast_size(nanobind::handle items) {
#ifdef Py_LIMITED_API
  return PySequence_Size(items.ptr());
#else
  return PySequence_Fast_GET_SIZE(items.ptr());
#endif
}

inline nanobind::handle fast_item(nanobind::handle items, Py_ssize_t i) {
#ifdef Py_LIMITED_API
  return PyList_Check(items.ptr()) ? PyList_GetItem(items.ptr(), i)
                                   : PyTuple_GetItem(items.ptr(), i);
#else
  return PySequence_Fast_GET_ITEM(items.ptr(), i);
#endif
}

}  // namespace cachalot::python
