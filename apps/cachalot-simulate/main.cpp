// The program `cachalot-simulate`, which `cachalot simulate`, `long-prefill` and `calibrate` start.
#include "program.h"

namespace cachalot::apps {
namespace {

void add_commands(Command& app, Chosen& chosen) {
  add_simulate(app, chosen);
  add_long_prefill(app, chosen);
  add_calibrate(app, chosen);
}

constexpr Program kProgram = {
    "cachalot", "cachalot-simulate " CACHALOT_VERSION,
    "Engines and clusters on fake time, and the models of how long their steps take.",
    "Example: cachalot simulate --trace conversation_trace.jsonl.gz --prefill 8 --decode 8 "
    "--policy random,conductor",
    add_commands};

}  // namespace
}  // namespace cachalot::apps

int main(int argc, char** argv) {
  return cachalot::apps::run_program(cachalot::apps::kProgram, argc, argv);
}
