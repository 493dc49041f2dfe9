// For tests: kernels of the PTX machine as those of the fake GPU (testing/gpu/fake_gpu.h).
#pragma once

#include <cstdint>
#include <functional>

#include "ptx/block.h"
#include "ptx/program.h"
#include "ptx/violation.h"
#include "testing/gpu/fake_gpu.h"

namespace cachalot::ptx {

// An observer of launches. Called with the machine's lock held.
struct LaunchListener {
  Watch watch = {};
  std::function<void(const Launched&)> on_end = {};
  // A launch that breaks a rule, or faults, has ended there; the machine has counted a fault.
  // `launch` counts them from 1 on, and is the same whenever the program does the same.
  std::function<void(const Violation&, std::uint64_t launch)> on_violation = {};
};

// Makes `kernel` one of the machine's; it must outlive it. Every launch has other turns of its threads, and its
// bulk transfers come early, late or at random, in turn.
void add_kernel(gpu::FakeMachine& machine, const Kernel& kernel, LaunchListener listener);

}  // namespace cachalot::ptx
