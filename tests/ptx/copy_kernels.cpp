#include "ptx/copy_kernels.h"

#include <gtest/gtest.h>

#include <fstream>
#include <sstream>
#include <string_view>

#include "kv/cuda/kernels_under_test.h"
#include "ptx/block.h"
#include "ptx/violation.h"

namespace cachalot::ptx {
namespace {

std::uint64_t instructions = 0, launches = 0;  // with the machine's lock held

// Registered memory, the pool's, has addresses from here on for the fake device, and no other has.
constexpr std::uint64_t kRegisteredFrom = std::uint64_t{1} << 52;

// What the pool's rules rest on: nothing older than the pool is read, nothing written is kept on the way.
void check_cache(std::uint64_t address, const Detail& how, bool writes) {
  const std::string_view wanted = writes ? "wt" : "cv";
  if (address < kRegisteredFrom || how.cache.data() == wanted) return;
  fail(Wrong::kRule, "pool memory at %#llx with cache operator '%s', expected %s",
       static_cast<unsigned long long>(address), how.cache.data(), wanted.data());
}

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
        launch(kernel, shape, argument, reach, seed, static_cast<Mood>(seed % 3), check_cache)
            .instructions;
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
