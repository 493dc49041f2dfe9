// The emulated GPUs behind fake_libcuda.cpp, for tests that are linked with it.
#pragma once

#include "testing/gpu/fake_gpu.h"

cachalot::gpu::FakeMachine& fake_machine();
