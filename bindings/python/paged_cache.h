// Converts the arguments that describe an engine's paged cache.
#pragma once

#include <cachalot/client.h>
#include <nanobind/nanobind.h>

#include <vector>

#include "memory.h"

namespace cachalot::python {

namespace nb = nanobind;

// As register_cache() takes them; None where there is no argument.
struct GivenCache {
  nb::handle layout;
  nb::object tensors;
  nb::handle pages, page_tokens, page_stride_bytes, strides, device, stream;
};

// @param held  gets the memory of the tensors: keep it while the cache is used
// Raises InvalidArgumentError, TypeError.
PagedCache paged_cache_of(const GivenCache& given, const KvGeometry& geometry,
                          std::vector<Memory>& held);

}  // namespace cachalot::python
