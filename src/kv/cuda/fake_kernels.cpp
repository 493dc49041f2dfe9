#include "kv/cuda/fake_kernels.h"

#include "kv/cuda/kernels_under_test.h"

namespace cachalot::kv {

void add_kernels_under_test(os::cuda::FakeMachine& machine) {
  add_kernels(machine);
}

}  // namespace cachalot::kv
