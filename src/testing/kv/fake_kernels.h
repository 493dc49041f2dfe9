// For tests: the kernels as a fake machine runs them. It is the same code as on a GPU (kv/fused), and
// every access is looked at: whether the device reaches it, and whether it is aligned.
#pragma once

#include "testing/gpu/fake_gpu.h"
#include "testing/kv/kernels.h"

namespace cachalot::kv {

// The machine's memory, as a kernel sees it.
class FakeMemory {
 public:
  explicit FakeMemory(gpu::FakeMachine& machine) : machine_(machine) {}

  template <class T>
  T load_pool(std::uint64_t at) {
    T value{};
    if (const std::byte* const from = find(at, sizeof(T), sizeof(T))) {
      std::memcpy(&value, from, sizeof value);
    }
    return value;
  }
  template <class T>
  void store_pool(std::uint64_t at, T value) {
    if (std::byte* const to = find(at, sizeof(T), sizeof(T))) std::memcpy(to, &value, sizeof value);
  }
  template <class T>
  T load_engine(std::uint64_t at) {
    return load_pool<T>(at);
  }
  template <class T>
  void store_engine(std::uint64_t at, T value) {
    store_pool(at, value);
  }
  void read(std::byte* to, std::uint64_t from, std::uint32_t bytes) {
    if (const std::byte* const found = find(from, bytes, kUnitBytes)) std::memcpy(to, found, bytes);
  }
  void write(std::uint64_t to, const std::byte* from, std::uint32_t bytes) {
    if (std::byte* const found = find(to, bytes, kUnitBytes)) std::memcpy(found, from, bytes);
  }

 private:
  std::byte* find(std::uint64_t at, std::uint64_t bytes, std::uint64_t alignment) {
    if (at % alignment == 0) return machine_.reach(at, bytes);
    ++machine_.faults;
    return nullptr;
  }

  gpu::FakeMachine& machine_;
};

template <Direction kDirection>
gpu::FakeMachine::Kernel fake_kernel(gpu::FakeMachine& machine, bool in_bulk) {
  const auto run = [&machine, in_bulk](const void* argument,
                                       const gpu::FakeMachine::Launch& launch) {
    const CallView call(*static_cast<const FusedLaunch*>(argument));
    FakeMemory memory(machine);
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
