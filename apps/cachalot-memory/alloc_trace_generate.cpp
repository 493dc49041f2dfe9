// `cachalot alloc-trace generate`: the allocations of a fine-tuning run, made up.

#include <memory>
#include <nlohmann/json.hpp>

#include "alloc_trace_output.h"
#include "command.h"
#include "output.h"
#include "result_flags.h"
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
     "GPUs over which ZeRO-3 spreads weights, gradients and optimizer; the trace is of one GPU"},
    {"--batch", &trace::FinetuneOptions::batch, 1, 1024, "sequences per iteration"},
    {"--sequence", &trace::FinetuneOptions::sequence, 2, 65536, "tokens per sequence"},
    {"--lora-rank", &trace::FinetuneOptions::lora_rank, 0, 65536,
     "train LoRA matrices of this rank; 0: train the weights"},
    {"--iterations", &trace::FinetuneOptions::iterations, 1, 1'000'000, "number of iterations"},
    {"--seed", &trace::FinetuneOptions::seed, 0, ~std::uint64_t{0}, "changes the paddings"},
};

struct Switch {
  const char* name;
  bool trace::FinetuneOptions::*value;
  const char* text;
};
constexpr Switch kSwitches[] = {
    {"--recompute", &trace::FinetuneOptions::recompute,
     "recompute a layer's activations instead of keeping them"},
    {"--offload", &trace::FinetuneOptions::offload, "keep weights and optimizer in host memory"},
    {"--gather-stream", &trace::FinetuneOptions::gather_stream,
     "allocate gathered weights on their own stream"},
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
  CACHALOT_TRY_ASSIGN(AllocTraceOutput output, AllocTraceOutput::open(options.out, options.json));
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

void add_alloc_trace_generate(Command& alloc_trace, Chosen& chosen) {
  auto options = std::make_shared<Options>();
  Command* const command = alloc_trace.add_subcommand(
      "generate",
      "generates the allocations of a GPU while a transformer is fine-tuned with ZeRO-3");
  command->add_option("--model", options->model, names_of_models())->type_name("NAME")->required();
  add_out_flag(*command, options->out);
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
                   "the sequences of an iteration are shorter by a random share, at most this")
      ->type_name("X")
      ->check(decimal(0, 0.999))
      ->capture_default_str();
  add_counts_flag(*command, options->json);
  command->footer(
      "Example: cachalot alloc-trace generate --model GPT-NeoX-20B --batch 24 --lora-rank 128 "
      "--recompute --offload --out finetune.trace.gz");
  command->callback([options, &chosen] { chosen.run = [options] { return run(*options); }; });
}

}  // namespace cachalot::apps
