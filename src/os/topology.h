// Cores: which there are, how to stay on one, how to wait on one.
#pragma once

#include <cachalot/result.h>
#include <immintrin.h>

#include <span>
#include <vector>

namespace cachalot::os {

// For the inside of a spin loop: gives the core's other thread the execution units.
inline void cpu_relax() {
  _mm_pause();
}

// The cores that this thread may run on, ascending; never empty.
std::vector<int> online_cores();

// The core that the calling thread runs on, or has just left; -1 where the kernel does not say.
// @cost a few ns
int current_core();

// Keeps the calling thread on one core. @errors kInvalidArgument: not one of online_cores()
Status pin_to_core(int core);

// Keeps the calling thread, and threads that it starts from here on, on these cores.
// @errors kInvalidArgument: one of them is no core's number, or none of them may be used
Status run_on(std::span<const int> cores);

}  // namespace cachalot::os
