// The compiled kernels of `bench` (cuda_kernels.cu); empty where the binary was built without
// nvcc.
#pragma once

#include <span>

namespace cachalot::apps::bench {

std::span<const unsigned char> cuda_kernel_image();

}  // namespace cachalot::apps::bench
