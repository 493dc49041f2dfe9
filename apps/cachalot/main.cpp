// The program `cachalot`: pools, traces and replays. Some commands are programs of their own.
#include "companions.h"
#include "program.h"
#include "top.h"

namespace cachalot::apps {
namespace {

void add_commands(Command& app, Chosen& chosen) {
  add_serve(app, chosen);
  add_stop(app, chosen);
  add_pool(app, chosen);
  add_top(app, chosen);
  add_doctor(app, chosen);
  add_put(app, chosen);
  add_get(app, chosen);
  add_lookup(app, chosen);
  add_evict(app, chosen);
  add_context(app, chosen);
  add_replay(app, chosen);
  add_hitrate(app, chosen);
  add_trace(app, chosen);
  add_completion(app, chosen);
  // For the help: main() starts these before the command line is read.
  for (const Companion& companion : companions()) {
    app.add_subcommand(companion.command, companion.description);
  }
  app.group_subcommands("Pools and what is in them",
                        {"serve", "stop", "pool", "top", "doctor", "put", "get", "lookup", "evict",
                         "context", "completion"});
  app.group_subcommands(
      "Request traces: replay, study, simulate",
      {"replay", "hitrate", "trace", "tiers", "simulate", "long-prefill", "calibrate"});
  app.group_subcommands("Device memory and benchmarks",
                        {"vtensor", "alloc-trace", "alloc-replay", "bench"});
}

constexpr Program kProgram = {
    "cachalot", "cachalot " CACHALOT_VERSION,
    "A shared pool of KV-cache blocks for LLM inference engines.",
    "Example: cachalot replay --trace conversation_trace.jsonl.gz --engines 4 --block-bytes 64KiB "
    "--capacity-blocks 20000\nExit code: 0 done; 1 a fault, or nothing found; 2 bad usage or "
    "input; 3 the environment prevents it (no keeper, no space, no permission, busy)",
    add_commands};

}  // namespace
}  // namespace cachalot::apps

int main(int argc, char** argv) {
  using namespace cachalot;
  const apps::Companion* const companion = argc > 1 ? apps::find_companion(argv[1]) : nullptr;
  if (companion != nullptr) {
    return apps::fail(
        apps::start_companion(*companion, {argv + 1, static_cast<std::size_t>(argc - 1)}));
  }
  return apps::run_program(apps::kProgram, argc, argv);
}
