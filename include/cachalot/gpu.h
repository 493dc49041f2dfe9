// What this library can do with GPUs.
#pragma once

namespace cachalot {

// Whether it was built with nvcc. Without kernels a cache on a GPU is kUnsupported. @threads any
bool has_gpu_kernels();

}  // namespace cachalot
