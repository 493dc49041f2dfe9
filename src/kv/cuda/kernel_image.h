// The compiled kernels (kernels.cu) as the driver takes them, for sm_80, sm_90 and sm_100, with PTX for
// later GPUs; empty where the library was built without nvcc.
#pragma once

#include <span>

namespace cachalot::kv {

std::span<const unsigned char> kernel_image();

}  // namespace cachalot::kv
