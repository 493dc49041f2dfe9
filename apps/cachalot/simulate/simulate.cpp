// `cachalot simulate`: engines on fake time, with measured or fitted step times.
#include "simulate.h"

#include <memory>

#include "command.h"
#include "values.h"

namespace cachalot::apps {
namespace {

Status simulate(const SimulateOptions& options) {
  if (options.trace_format == "vllm-run") return simulate_recorded_run(options);
  return Error::make(Code::kInvalidArgument,
                     "--trace-format: \"%.40s\", expected vllm-run, a recorded run of an engine",
                     options.trace_format.c_str());
}

int run(const SimulateOptions& options) {
  const Status status = simulate(options);
  return status ? kExitDone : fail(status.error());
}

}  // namespace

void add_simulate(CLI::App& app, Chosen& chosen) {
  auto options = std::make_shared<SimulateOptions>();
  CLI::App* const command =
      app.add_subcommand("simulate", "engines on fake time: what a trace would have taken");
  const auto add = [&](const char* name, std::string& value, const std::string& type,
                       const std::string& text) {
    return command->add_option(name, value, text)->type_name(type);
  };
  add("--trace", options->trace, "FILE", "requests, plain or gzip")->required();
  add("--trace-format", options->trace_format, "NAME",
      "vllm-run: a recorded run of an engine, to compare with")
      ->required();
  add("--profile", options->profile, "FOLDER",
      "measured operator times of the GPU and model: dense, attention, per_sequence, meta.yaml");
  add("--meta", options->meta, "FILE", "of a recorded run: the engine's options, as JSON");
  add("--seconds", options->seconds, "FILE",
      "of a recorded run: its CSV of one row a second (default: beside --trace)");
  add("--colocated", options->colocated, "N", "engines that prefill and decode")
      ->transform(number(1, 4096));
  add("--tp-link-gb-s", options->link_gb_s, "X",
      "all-reduce bandwidth among the GPUs of an engine, instead of the GPU's preset")
      ->transform(decimal(0.001, 1e6));
  add("--tp-link-us", options->link_us, "X", "and what a small all-reduce takes")
      ->transform(decimal(0, 1e6));
  command->add_flag("--compare", options->compare,
                    "of a recorded run: print simulated and recorded figures side by side");
  add("--csv", options->csv, "FILE", "write a row per request to FILE, or to stdout for -");
  add("--json", options->json, "FILE", "write the result to FILE, or to stdout for -");
  command->footer(
      "Example: cachalot simulate --trace run.requests.jsonl.gz --trace-format vllm-run --profile "
      "rtx4090-llama-3.1-8b-tp1 --meta run.meta.json --colocated 1 --compare");
  command->callback([options, &chosen] { chosen.run = [options] { return run(*options); }; });
}

}  // namespace cachalot::apps
