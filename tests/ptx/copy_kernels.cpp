#include "ptx/copy_kernels.h"

#include <gtest/gtest.h>

#include <fstream>
#include <sstream>
#include <string_view>

#include "ptx/fake_gpu_kernels.h"
#include "ptx/violation.h"
#include "testing/kv/kernels_under_test.h"

namespace cachalot::ptx {
namespace {

std::uint64_t instructions = 0;  // with the machine's lock held

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
void report(const Violation& violation, std::uint64_t launch) {
  if (violation.kind != Wrong::kFault)
    ADD_FAILURE() << "launch " << launch << ": " << violation.what();
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

void add_kernels_under_test(gpu::FakeMachine& machine) {
  machine.compute_major = CACHALOT_PTX_ARCHITECTURE / 10;
  for (const ptx::Kernel& kernel : ptx::copy_kernels().kernels) {
    ptx::add_kernel(
        machine, kernel,
        {.watch = ptx::check_cache,
         .on_end = [](const ptx::Launched& done) { ptx::instructions += done.instructions; },
         .on_violation = ptx::report});
  }
}

}  // namespace cachalot::kv
