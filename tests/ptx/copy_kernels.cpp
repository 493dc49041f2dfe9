#include "ptx/copy_kernels.h"

#include <gtest/gtest.h>

#include <fstream>
#include <sstream>

#include "kv/cuda/kernels_under_test.h"
#include "ptx/block.h"
#include "ptx/violation.h"

namespace cachalot::ptx {
namespace {

std::uint64_t instructions = 0, launches = 0;  // with the machine's lock held

// What a rule of the GPU forbids fails the test; an address that it does not reach is a fault of the
// machine, which a test may want.
void run(os::cuda::FakeMachine& machine, const Kernel& kernel, const void* argument,
         const os::cuda::FakeMachine::Launch& launched) {
  Shape shape;
  shape.grid[0] = launched.blocks;
  shape.block[0] = launched.threads;
  shape.dynamic_shared_bytes = launched.shared_bytes;
  const std::uint64_t seed = ++launches;
  const std::uint64_t faults = machine.faults;
  const auto reach = [&machine](std::uint64_t at, std::uint64_t bytes) {
    const std::uint64_t before = machine.faults;
    std::byte* const found = machine.reach(at, bytes);
    machine.faults = before;
    return found;
  };
  try {
    instructions +=
        launch(kernel, shape, argument, reach, seed, static_cast<Mood>(seed % 3)).instructions;
  } catch (const Violation& violation) {
    machine.faults = faults + 1;
    if (violation.kind != Wrong::kFault) {
      ADD_FAILURE() << "launch " << seed << ": " << violation.what();
    }
  }
}

}  // namespace

const Program& copy_kernels() {
  static const Program kProgram = [] {
    std::ifstream file(CACHALOT_PTX);
    std::ostringstream text;
    text << file.rdbuf();
    return assemble(text.str());
  }();
  return kProgram;
}

std::uint64_t instructions_run() {
  return instructions;
}

}  // namespace cachalot::ptx

namespace cachalot::kv {

void add_kernels_under_test(os::cuda::FakeMachine& machine) {
  machine.compute_major = CACHALOT_PTX_ARCHITECTURE / 10;
  for (const ptx::Kernel& kernel : ptx::copy_kernels().kernels) {
    machine.kernels[kernel.source.name] = {
        kernel.parameter_bytes,
        [&machine, &kernel](const void* argument, const os::cuda::FakeMachine::Launch& launched) {
          ptx::run(machine, kernel, argument, launched);
        }};
  }
}

}  // namespace cachalot::kv
