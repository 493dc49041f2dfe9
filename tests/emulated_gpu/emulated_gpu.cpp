// A libcuda.so.1 whose GPU does what nvcc made of our kernels, instruction by instruction (tests/ptx). Whoever
// opens libcuda.so.1 with this folder in LD_LIBRARY_PATH gets it:
//
//   LD_LIBRARY_PATH=build/dev/tests/emulated_gpu build/dev/apps/cachalot/cachalot bench attention --quick
//
// Times measured on it mean nothing. A launch that breaks a rule of GPUs says so on stderr and fails.
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include "fake_libcuda.h"
#include "ptx/block.h"
#include "ptx/violation.h"

namespace {

using namespace cachalot;
using os::cuda::FakeMachine;

// With the machine's lock held.
std::uint64_t launches = 0;

void run(FakeMachine& machine, const ptx::Kernel& kernel, const void* arguments,
         const FakeMachine::Launch& launched) {
  ptx::Shape shape;
  shape.grid[0] = launched.blocks;
  shape.block[0] = launched.threads;
  shape.dynamic_shared_bytes = launched.shared_bytes;
  const std::uint64_t seed = ++launches;
  const auto reach = [&machine](std::uint64_t at, std::uint64_t bytes) {
    const std::uint64_t before = machine.faults;
    std::byte* const found = machine.reach(at, bytes);
    machine.faults = before;
    return found;
  };
  try {
    ptx::launch(kernel, shape, arguments, reach, seed, static_cast<ptx::Mood>(seed % 3));
  } catch (const ptx::Violation& violation) {
    std::fprintf(stderr, "emulated GPU: %s: %s\n", kernel.source.name.c_str(), violation.what());
    ++machine.faults;
  }
}

FakeMachine::Kernel kernel_of(FakeMachine& machine, const ptx::Kernel& kernel) {
  FakeMachine::Kernel out{
      kernel.parameter_bytes,
      [&machine, &kernel](const void* arguments, const FakeMachine::Launch& launched) {
        run(machine, kernel, arguments, launched);
      }};
  std::uint64_t end = 0;
  for (const ptx::Variable& parameter : kernel.source.parameters) {
    const std::uint64_t offset =
        (end + parameter.alignment - 1) / parameter.alignment * parameter.alignment;
    out.parameters.push_back({offset, parameter.bytes});
    end = offset + parameter.bytes;
  }
  return out;
}

// When the library is loaded.
[[gnu::constructor]] void add_all_kernels() {
  static std::vector<ptx::Program>* const programs = new std::vector<ptx::Program>;
  FakeMachine& machine = fake_machine();
  machine.devices = 1;
  machine.multiprocessors =
      16;  // who fills them all launches no more threads than it has patience for
  machine.memory_bytes = std::uint64_t{8} << 30;
  std::istringstream files(CACHALOT_PTX);
  for (std::string file; std::getline(files, file, ':');) {
    std::ostringstream text;
    text << std::ifstream(file).rdbuf();
    try {
      programs->push_back(ptx::assemble(text.str()));
    } catch (const ptx::Violation& violation) {
      std::fprintf(stderr, "emulated GPU: %s: %s\n", file.c_str(), violation.what());
      std::abort();
    }
  }
  for (const ptx::Program& program : *programs) {
    for (const ptx::Kernel& kernel : program.kernels) {
      machine.kernels[kernel.source.name] = kernel_of(machine, kernel);
    }
  }
}

}  // namespace
