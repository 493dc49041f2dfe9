// The emulated GPUs behind fake_libcuda.cpp, for tests that are linked with it.
#pragma once

#include "vmm/cuda/fake_gpu.h"

cachalot::vmm::cuda::FakeMachine& fake_machine();
