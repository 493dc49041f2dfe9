// For tests: the kernels that a fake machine runs under the suites of copy engines. Who links the suite
// says which, by the file it links: the kernels' bodies (fake_kernels.cpp), or the PTX that nvcc made of
// kernels.cu (tests/ptx).
#pragma once

#include "os/cuda/fake_gpu.h"

namespace cachalot::kv {

// And the machine is a GPU that has them.
void add_kernels_under_test(os::cuda::FakeMachine& machine);

}  // namespace cachalot::kv
