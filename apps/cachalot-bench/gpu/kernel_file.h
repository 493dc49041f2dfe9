// Kernels from a file, in the place of those that were compiled in: variants are tried without a build.
#pragma once

#include <cachalot/result.h>

#include <string>
#include <vector>

namespace cachalot::apps::bench {

// A fat binary or a cubin, as the driver takes it. The driver is given no size, so the file must hold all
// that its header announces.
// @errors as of opening it; kInvalidArgument: neither of the two, or not whole
Result<std::vector<unsigned char>> read_kernels(const std::string& path);

}  // namespace cachalot::apps::bench
