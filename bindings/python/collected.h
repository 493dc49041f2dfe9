// What Python's collector of cycles asks of a type whose objects hold others: a tensor may hold its client,
// which holds the tensor. The client lets go of what it holds, the others only show it: each of them holds a
// client.
#pragma once

#include <nanobind/nanobind.h>

namespace cachalot::python {

template <class T>
int traverse(PyObject* self, visitproc visit, void* arg) {
  Py_VISIT(Py_TYPE(self));
  if (!nanobind::inst_ready(self)) return 0;
  return nanobind::inst_ptr<T>(self)->traverse(visit, arg);
}

// Of a type with `int traverse(visitproc, void*) const`.
template <class T>
inline PyType_Slot kTraverse[] = {{Py_tp_traverse, reinterpret_cast<void*>(traverse<T>)},
                                  {0, nullptr}};

}  // namespace cachalot::python
