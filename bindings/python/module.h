// The parts of the extension module.
#pragma once

#include <nanobind/nanobind.h>

namespace cachalot::python {

void add_geometry(nanobind::module_& module);
void add_strides(nanobind::module_& module);
void add_hash(nanobind::module_& module);
void add_cache_memory(nanobind::module_& module);
void add_keeper(nanobind::module_& module);
// Client is registered before the types that it returns
void add_client(nanobind::module_& module);
void add_results(nanobind::module_& module);  // by add_client()
void add_layerwise(nanobind::module_& module);
void add_async_call(nanobind::module_& module);
void add_transfer(nanobind::module_& module);
void add_transfer_endpoint(nanobind::module_& module);

}  // namespace cachalot::python
