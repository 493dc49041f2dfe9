// The emulated GPUs behind fake_libcuda.cpp, for tests that are linked with it.
#pragma once

#include "os/cuda/fake_gpu.h"

cachalot::os::cuda::FakeMachine& fake_machine();
