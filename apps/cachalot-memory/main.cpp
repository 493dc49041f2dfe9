// The program `cachalot-memory`, which `cachalot vtensor`, `alloc-trace` and `alloc-replay` start.
#include "program.h"

namespace cachalot::apps {
namespace {

void add_commands(Command& app, Chosen& chosen) {
  add_vtensor(app, chosen);
  add_alloc_trace(app, chosen);
  add_alloc_replay(app, chosen);
}

constexpr Program kProgram = {
    "cachalot", "cachalot-memory " CACHALOT_VERSION,
    "GPU memory: contiguous KV tensors, allocators and their traces.",
    "Example: cachalot alloc-replay --trace training.trace.gz --allocator all", add_commands};

}  // namespace
}  // namespace cachalot::apps

int main(int argc, char** argv) {
  return cachalot::apps::run_program(cachalot::apps::kProgram, argc, argv);
}
