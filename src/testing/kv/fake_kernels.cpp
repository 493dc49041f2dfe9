#include "testing/kv/fake_kernels.h"

#include "testing/kv/kernels_under_test.h"

namespace cachalot::kv {

void add_kernels_under_test(gpu::FakeMachine& machine) {
  add_kernels(machine);
}

}  // namespace cachalot::kv
