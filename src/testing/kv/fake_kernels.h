// For tests: the kernels as a fake machine runs them. It is the same code as on a GPU (kv/fused), and
// every access is looked at: whether the device reaches it, and whether it is aligned.
#pragma once

#include "testing/gpu/fake_gpu.h"
#include "testing/kv/kernels.h"

namespace cachalot::kv {

// The machine's memory, as a kernel sees it.
struct FakePlace {
  gpu::FakeMachine* machine;

  std::byte* operator()(std::uint64_t at, std::uint64_t bytes, std::uint64_t alignment) const {
    if (at % alignment == 0) return machine->reach(at, bytes);
    ++machine->faults;
    return nullptr;
  }
};
using FakeMemory = emulated::CopiedMemory<FakePlace>;

template <Direction kDirection>
gpu::FakeMachine::Kernel fake_kernel(gpu::FakeMachine& machine, bool in_bulk) {
  const auto run = [&machine, in_bulk](const void* argument,
                                       const gpu::FakeMachine::Launch& launch) {
    const CallView call(*static_cast<const FusedLaunch*>(argument));
    FakeMemory memory(FakePlace{&machine});
    if (!in_bulk) {
      return emulated::launch_threads<kDirection>(call, launch.blocks, launch.threads, memory);
    }
    if (launch.threads != 32 || launch.shared_bytes < kStages * call->item_bytes) ++machine.faults;
    emulated::launch_bulk<kDirection>(call, launch.blocks, memory);
  };
  return {sizeof(FusedLaunch), run};
}

inline void add_kernels(gpu::FakeMachine& machine) {
  machine.kernels["cachalot_gather"] = fake_kernel<Direction::kGather>(machine, false);
  machine.kernels["cachalot_scatter"] = fake_kernel<Direction::kScatter>(machine, false);
  machine.kernels["cachalot_gather_bulk"] = fake_kernel<Direction::kGather>(machine, true);
  machine.kernels["cachalot_scatter_bulk"] = fake_kernel<Direction::kScatter>(machine, true);
}

inline constexpr unsigned char kFakeImage[] = {1};

}  // namespace cachalot::kv
