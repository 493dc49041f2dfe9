// The extension module: one file per public header registers its declarations.
#include "module.h"

#include <cachalot/gpu.h>
#include <nanobind/nanobind.h>

#include "live.h"

NB_MODULE(_cachalot, module) {
  namespace python = cachalot::python;
  module.doc() = "The compiled part of the package cachalot.";
  // Prints no leak warnings: programs need not detach their clients.
  nanobind::set_leak_warnings(false);
  python::add_geometry(module);
  python::add_strides(module);
  python::add_hash(module);
  python::add_keeper(module);
  python::add_client(module);
  python::add_cache_memory(module);
  python::add_layerwise(module);
  python::add_async_call(module);
  python::add_transfer(module);
  python::add_transfer_endpoint(module);
  module.attr("has_gpu_kernels") = cachalot::has_gpu_kernels();
  // Not by Python's atexit: its functions may need clients and keepers (multiprocessing's waits for children that
  // use the pool). Py_AtExit() fails if 32 functions are registered already.
  (void)Py_AtExit([] {
    python::end_clients();  // they detach from their keepers
    python::end_keepers();
  });
}
