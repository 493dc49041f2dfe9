#include "ptx/fake_gpu_kernels.h"

#include <utility>
#include <vector>

namespace cachalot::ptx {
namespace {

using gpu::FakeMachine;

std::uint64_t launches = 0;  // with the machine's lock held

void run(FakeMachine& machine, const Kernel& kernel, const LaunchListener& listener,
         const void* arguments, const FakeMachine::Launch& launched) {
  Shape shape;
  shape.grid[0] = launched.blocks;
  shape.block[0] = launched.threads;
  shape.dynamic_shared_bytes = launched.shared_bytes;
  const std::uint64_t seed = ++launches;
  // The PTX machine says itself what it cannot reach.
  const auto reach = [&machine](std::uint64_t at, std::uint64_t bytes) {
    const std::uint64_t before = machine.faults;
    std::byte* const found = machine.reach(at, bytes);
    machine.faults = before;
    return found;
  };
  try {
    const Launched done =
        launch(kernel, shape, arguments, reach, seed, static_cast<Mood>(seed % 3), listener.watch);
    if (listener.on_end) listener.on_end(done);
  } catch (const Violation& violation) {
    ++machine.faults;
    if (listener.on_violation) listener.on_violation(violation, seed);
  }
}

// As PTX lays them out: each at the next multiple of its alignment.
std::vector<FakeMachine::Kernel::Parameter> parameters_of(const Kernel& kernel) {
  std::vector<FakeMachine::Kernel::Parameter> out;
  std::uint64_t end = 0;
  for (const Variable& parameter : kernel.source.parameters) {
    const std::uint64_t offset =
        (end + parameter.alignment - 1) / parameter.alignment * parameter.alignment;
    out.push_back({offset, parameter.bytes});
    end = offset + parameter.bytes;
  }
  return out;
}

}  // namespace

void add_kernel(FakeMachine& machine, const Kernel& kernel, LaunchListener listener) {
  machine.kernels[kernel.source.name] = {
      kernel.parameter_bytes,
      [&machine, &kernel, listener = std::move(listener)](const void* arguments,
                                                          const FakeMachine::Launch& launched) {
        run(machine, kernel, listener, arguments, launched);
      },
      parameters_of(kernel)};
}

}  // namespace cachalot::ptx
