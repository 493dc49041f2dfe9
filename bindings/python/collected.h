// Support for Python's cyclic garbage collector: a tensor may refer to its client, which refers to the tensor.
// The client releases its references; other types only show theirs, because each refers to a client.
#pragma once

#include <nanobind/nanobind.h>

namespace cachalot::python {

template <class T>
int traverse(PyObject* self, visitproc visit, void* arg) {
  Py_VISIT(Py_TYPE(self));
  if (!nanobind::inst_ready(self)) return 0;
  return nanobind::inst_ptr<T>(self)->traverse(visit, arg);
}

// For a type with `int traverse(visitproc, void*) const`.
template <class T>
inline PyType_Slot kTraverse[] = {{Py_tp_traverse, reinterpret_cast<void*>(traverse<T>)},
                                  {0, nullptr}};

}  // namespace cachalot::python
