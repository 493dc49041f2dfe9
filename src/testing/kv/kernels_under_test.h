// For tests: the kernels that a fake machine runs under the suites of copy engines. A test that links the suite
// says which, by the file it links: the kernels' bodies (fake_kernels.cpp), or the PTX that nvcc made of
// kernels.cu (tests/ptx).
#pragma once

#include "testing/gpu/fake_gpu.h"

namespace cachalot::kv {

// And the machine is a GPU that has them.
void add_kernels_under_test(gpu::FakeMachine& machine);

}  // namespace cachalot::kv
