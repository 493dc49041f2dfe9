#include "os/topology.h"

#include <sched.h>

#include <cerrno>
#include <memory>

namespace cachalot::os {
namespace {

constexpr int kMaxCores = 8192;  // what Linux can be built for on x86-64

struct FreeSet {
  void operator()(cpu_set_t* set) const { CPU_FREE(set); }
};
using CoreSet = std::unique_ptr<cpu_set_t, FreeSet>;

CoreSet new_set() {
  CoreSet set(CPU_ALLOC(kMaxCores));
  CPU_ZERO_S(CPU_ALLOC_SIZE(kMaxCores), set.get());
  return set;
}

}  // namespace

std::vector<int> online_cores() {
  const std::size_t set_bytes = CPU_ALLOC_SIZE(kMaxCores);
  const CoreSet set = new_set();
  std::vector<int> cores;
  if (sched_getaffinity(0, set_bytes, set.get()) == 0) {
    for (int core = 0; core < kMaxCores; ++core) {
      if (CPU_ISSET_S(core, set_bytes, set.get())) cores.push_back(core);
    }
  }
  if (cores.empty()) cores.push_back(0);
  return cores;
}

int current_core() {
  return sched_getcpu();
}

Status pin_to_core(int core) {
  return run_on({&core, 1});
}

Status run_on(std::span<const int> cores) {
  const std::size_t set_bytes = CPU_ALLOC_SIZE(kMaxCores);
  const CoreSet set = new_set();
  for (const int core : cores) {
    if (core < 0 || core >= kMaxCores) {
      return Error::make(Code::kInvalidArgument, "core: %d is not in 0..%d", core, kMaxCores - 1);
    }
    CPU_SET_S(core, set_bytes, set.get());
  }
  if (sched_setaffinity(0, set_bytes, set.get()) != 0) {
    return Error::from_errno(errno, "core: pinning to %zu, the first of them %d", cores.size(),
                             cores.empty() ? -1 : cores[0]);
  }
  return {};
}

}  // namespace cachalot::os
