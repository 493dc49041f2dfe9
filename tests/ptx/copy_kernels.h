// For tests: the PTX that nvcc made of kv/cuda/kernels.cu, and what has been run of it.
#pragma once

#include <cstdint>

#include "ptx/program.h"

namespace cachalot::ptx {

// Of the architecture that the program was built for.
const Program& copy_kernels();

// The instructions of all launches on fake machines.
std::uint64_t instructions_run();

}  // namespace cachalot::ptx
