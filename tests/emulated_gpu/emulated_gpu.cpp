// A libcuda.so.1 whose GPU does what nvcc made of our kernels, instruction by instruction (tests/ptx). A program that
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
#include "ptx/fake_gpu_kernels.h"
#include "ptx/violation.h"

namespace {

using namespace cachalot;
using gpu::FakeMachine;

// When the library is loaded.
[[gnu::constructor]] void add_all_kernels() {
  static std::vector<ptx::Program>* const programs = new std::vector<ptx::Program>;
  FakeMachine& machine = fake_machine();
  machine.devices = 1;
  machine.multiprocessors =
      16;  // a caller that fills them all launches a bounded number of threads
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
      ptx::add_kernel(machine, kernel,
                      {.on_violation = [&kernel](const ptx::Violation& violation, std::uint64_t) {
                        std::fprintf(stderr, "emulated GPU: %s: %s\n", kernel.source.name.c_str(),
                                     violation.what());
                      }});
    }
  }
}

}  // namespace
