// What the module is put together from.
#pragma once

#include <nanobind/nanobind.h>

namespace cachalot::python {

void add_geometry(nanobind::module_& module);
void add_strides(nanobind::module_& module);
void add_hash(nanobind::module_& module);
void add_keeper(nanobind::module_& module);
void add_client(nanobind::module_& module);  // Client comes before what it hands out
void add_layerwise(nanobind::module_& module);
void add_async_call(nanobind::module_& module);

}  // namespace cachalot::python
