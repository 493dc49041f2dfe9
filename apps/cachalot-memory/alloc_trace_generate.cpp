// `cachalot alloc-trace generate`: the allocations of a fine-tuning run, made up.

#include <memory>
#include <nlohmann/json.hpp>

#include "alloc_trace_output.h"
#include "command.h"
#include "output.h"
#include "trace/allocation/finetune_generator.h"
#include "values.h"

namespace cachalot::apps {
namespace {

struct Options {
  std::string model;
  trace::FinetuneOptions run;
  std::string out, json;
};

struct Number {
  const char* name;
  std::uint64_t trace::FinetuneOptions::*value;
  std::uint64_t low, high;
  const char* text;
};
constexpr Number kNumbers[] = {
    {"--gpus", &trace::FinetuneOptions::gpus, 1, 65536,
     "GPUs that ZeRO-3 spreads weights, gradients and optimizer over; the trace is of one"},
    {"--batch", &trace::FinetuneOptions::batch, 1, 1024, "sequences of an iteration"},
    {"--sequence", &trace::FinetuneOptions::sequence, 2, 65536, "tokens of a sequence"},
    {"--lora-rank", &trace::FinetuneOptions::lora_rank, 0, 65536,
     "train matrices of this rank beside the weights; 0: train the weights"},
    {"--iterations", &trace::FinetuneOptions::iterations, 1, 1'000'000, "how many"},
    {"--seed", &trace::FinetuneOptions::seed, 0, ~std::uint64_t{0},
     "other seeds give other paddings"},
};

struct Switch {
  const char* name;
  bool trace::FinetuneOptions::*value;
  const char* text;
};
constexpr Switch kSwitches[] = {
    {"--recompute", &trace::FinetuneOptions::recompute,
     "compute a layer's activations again instead of keeping them"},
    {"--offload", &trace::FinetuneOptions::offload, "weights and optimizer lie in host memory"},
    {"--gather-stream", &trace::FinetuneOptions::gather_stream,
     "gathered weights are of a stream of their own"},
};

std::string names_of_models() {
  std::string names;
  for (const trace::FinetuneModel& model : trace::finetune_models()) {
    names += (names.empty() ? "" : ", ") + std::string(model.name);
  }
  return names;
}

nlohmann::json json_of_run(const trace::FinetuneOptions& run) {
  return {{"model", run.model.name},
          {"gpus", run.gpus},
          {"batch", run.batch},
          {"sequence", run.sequence},
          {"lora_rank", run.lora_rank},
          {"recompute", run.recompute},
          {"offload", run.offload},
          {"gather_stream", run.gather_stream},
          {"dynamic_padding", run.dynamic_padding},
          {"seed", run.seed}};
}

Status generate(const Options& options) {
  trace::FinetuneOptions run = options.run;
  CACHALOT_TRY_ASSIGN(run.model, trace::find_finetune_model(options.model));
  CACHALOT_TRY_ASSIGN(trace::FinetuneGenerator generator, trace::FinetuneGenerator::make(run));
  CACHALOT_TRY_ASSIGN(Output json, Output::open(options.json));
  CACHALOT_TRY_ASSIGN(AllocTraceOutput output,
                      AllocTraceOutput::open("alloc-trace generate", options.out, options.json));
  trace::AllocEvent event;
  while (generator.next(event)) CACHALOT_TRY(output.write(event));
  CACHALOT_TRY(output.finish());
  nlohmann::json result = json_of_run(run);
  result.update(json_of(output.summary()));
  return json.write_json(result);
}

int run(const Options& options) {
  const Status status = generate(options);
  return status ? kExitDone : fail(status.error());
}

}  // namespace

void add_alloc_trace_generate(CLI::App& alloc_trace, Chosen& chosen) {
  auto options = std::make_shared<Options>();
  CLI::App* const command = alloc_trace.add_subcommand(
      "generate", "makes up what a GPU allocates when a transformer is fine-tuned with ZeRO-3");
  command->add_option("--model", options->model, names_of_models())->type_name("NAME")->required();
  command
      ->add_option("--out", options->out,
                   "where to write, gzip where the name ends in .gz, or - for stdout")
      ->type_name("FILE")
      ->required();
  for (const Number& flag : kNumbers) {
    command->add_option(flag.name, options->run.*flag.value, flag.text)
        ->type_name("N")
        ->transform(number(flag.low, flag.high))
        ->capture_default_str();
  }
  for (const Switch& flag : kSwitches) {
    command->add_flag(flag.name, options->run.*flag.value, flag.text);
  }
  command
      ->add_option("--dynamic-padding", options->run.dynamic_padding,
                   "sequences of an iteration are shorter by at most this share, at random")
      ->type_name("X")
      ->check(decimal(0, 0.999))
      ->capture_default_str();
  command->add_option("--json", options->json, "write the counts to FILE, or to stdout for -")
      ->type_name("FILE");
  command->footer(
      "Example: cachalot alloc-trace generate --model GPT-NeoX-20B --batch 24 --lora-rank 128 "
      "--recompute --offload --out finetune.trace.gz");
  command->callback([options, &chosen] { chosen.run = [options] { return run(*options); }; });
}

}  // namespace cachalot::apps
