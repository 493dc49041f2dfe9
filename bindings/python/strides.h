// Converts the strides argument of register_cache().
#pragma once

#include <cachalot/geometry.h>
#include <cachalot/strides.h>
#include <nanobind/nanobind.h>

#include <array>

namespace cachalot::python {

namespace nb = nanobind;

// The strides of both parts. Raises InvalidArgumentError: not two; TypeError: no sequence of PartStrides.
std::array<PartStrides, kParts> strides_of(nb::handle object);

}  // namespace cachalot::python
