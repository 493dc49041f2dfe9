// The extension module: one file for each public header registers what that header declares.
#include "module.h"

#include <nanobind/nanobind.h>

NB_MODULE(_cachalot, module) {
  namespace python = cachalot::python;
  module.doc() = "The compiled part of the package cachalot.";
  // A client that a program never detached is no reason to write to its terminal.
  nanobind::set_leak_warnings(false);
  python::add_geometry(module);
  python::add_hash(module);
  python::add_keeper(module);
  python::add_client(module);
  python::add_layerwise(module);
  python::add_async_call(module);
}
