// The program `cachalot-simulate`, which `cachalot simulate`, `long-prefill`, `calibrate` and `tiers` start.
#include "program.h"

namespace cachalot::apps {
namespace {

void add_commands(Command& app, Chosen& chosen) {
  add_simulate(app, chosen);
  add_long_prefill(app, chosen);
  add_calibrate(app, chosen);
  add_tiers(app, chosen);
}

constexpr Program kProgram = {
    "cachalot", "cachalot-simulate " CACHALOT_VERSION,
    "Engines and clusters on fake time, models of how long their steps take, and tiers of KV.",
    "Example: cachalot simulate --trace conversation_trace.jsonl.gz --prefill 8 --decode 8 "
    "--policy random,conductor",
    add_commands};

}  // namespace
}  // namespace cachalot::apps

int main(int argc, char** argv) {
  return cachalot::apps::run_program(cachalot::apps::kProgram, argc, argv);
}
