// Extra keys of blocks (cachalot/extra_key.h) from Python, in the form that vLLM's functions give them.
#pragma once

#include <cachalot/extra_key.h>
#include <nanobind/nanobind.h>

#include <cstddef>
#include <vector>

namespace cachalot::python {

namespace nb = nanobind;

// None, or a sequence with None or a sequence of tuples of str, bytes and int for each of the first blocks.
// Raises InvalidArgumentError: more entries than blocks, a number beyond 64 bits; TypeError.
std::vector<ExtraKeys> extra_keys_of(nb::handle object, std::size_t blocks);

}  // namespace cachalot::python
