// The compiled kernels of pattern_kernels.cu; empty where the binary was built without nvcc.
#pragma once

#include <span>

namespace cachalot::apps {

std::span<const unsigned char> pattern_kernel_image();

}  // namespace cachalot::apps
