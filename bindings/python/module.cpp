// The extension module: one file for each public header registers what that header declares.
#include "module.h"

#include <nanobind/nanobind.h>

#include "live.h"

NB_MODULE(_cachalot, module) {
  namespace python = cachalot::python;
  module.doc() = "The compiled part of the package cachalot.";
  // A client that a program never detached is no reason to write to its terminal.
  nanobind::set_leak_warnings(false);
  python::add_geometry(module);
  python::add_strides(module);
  python::add_hash(module);
  python::add_keeper(module);
  python::add_client(module);
  python::add_layerwise(module);
  python::add_async_call(module);
  // Not by Python's atexit: its functions may need clients and keepers, as multiprocessing's does, which waits
  // for children that use the pool. It fails where 32 others have asked for it.
  (void)Py_AtExit([] {
    python::end_clients();  // which say goodbye to their keepers
    python::end_keepers();
  });
}
