// `cachalot long-prefill`: how to split one long prompt over several instances.

#include <algorithm>
#include <cinttypes>
#include <memory>
#include <nlohmann/json.hpp>

#include "command.h"
#include "line_plot.h"
#include "output.h"
#include "sched/timing/formula_model.h"
#include "sched/timing/parallel_prefill.h"
#include "sched/timing/timing_preset.h"
#include "values.h"

namespace cachalot::apps {
namespace {

struct Options {
  std::string model = "LLaMA3-70B", hardware = "8xA800_SXM";
  std::vector<std::string> tokens = {"32768,65536,131072,262144,524288"};
  std::vector<std::string> instances = {"2,4,8"};
  std::uint64_t chunk_tokens = 0;  // 0: the best
  double link_gb_s = 100, link_latency_us = 10;
  std::string json, plot;
};

enum class Split : std::uint8_t { kPipeline, kSequence, kTensor };
constexpr Split kSplits[] = {Split::kPipeline, Split::kSequence, Split::kTensor};
const char* name_of(Split split) {
  constexpr const char* kNames[] = {"pipeline", "sequence", "tensor"};
  return kNames[static_cast<std::size_t>(split)];
}

struct Row {
  std::uint64_t tokens = 0, instances = 0;
  Split split = Split::kPipeline;
  std::uint64_t chunk_tokens = 0;  // pipeline
  double seconds = 0, sent_bytes = 0;
  double one_instance_s = 0;

  double speedup() const { return one_instance_s / seconds; }
};

struct Subject {
  sched::TimingPreset preset;
  sched::FormulaModel timing;
  sched::GroupLink link;
};

Row row_of(const Subject& subject, const Options& options, std::uint64_t tokens,
           std::uint64_t instances, Split split) {
  const sched::ServedModel& model = subject.preset.model;
  Row row{.tokens = tokens, .instances = instances, .split = split};
  row.one_instance_s = subject.timing.prefill_seconds(tokens, 0);
  switch (split) {
    case Split::kPipeline:
      row.chunk_tokens =
          options.chunk_tokens != 0
              ? options.chunk_tokens
              : sched::best_chunk_tokens(subject.timing, model, tokens, instances, subject.link);
      row.seconds = sched::chunked_pipeline_seconds(subject.timing, model, tokens, instances,
                                                    row.chunk_tokens, subject.link);
      row.sent_bytes = sched::chunked_pipeline_bytes(model, tokens, instances);
      break;
    case Split::kSequence:
      row.seconds =
          sched::sequence_parallel_seconds(subject.timing, model, tokens, instances, subject.link);
      row.sent_bytes = sched::sequence_parallel_bytes(model, tokens, instances);
      break;
    case Split::kTensor:
      row.seconds =
          sched::tensor_parallel_seconds(subject.timing, model, tokens, instances, subject.link);
      row.sent_bytes = sched::tensor_parallel_bytes(model, tokens, instances);
      break;
  }
  return row;
}

Result<std::vector<std::uint64_t>> numbers_of(const char* flag,
                                              const std::vector<std::string>& texts,
                                              std::uint64_t low, std::uint64_t high) {
  CACHALOT_TRY_ASSIGN(std::vector<std::string> parts, split_list(flag, texts));
  std::vector<std::uint64_t> numbers;
  for (std::string& part : parts) {
    // The validator changes its argument.
    const std::string problem = number(low, high).problem_of(part);
    if (!problem.empty()) {
      return Error::make(Code::kInvalidArgument, "%s: %s", flag, problem.c_str());
    }
    numbers.push_back(std::stoull(part));
  }
  return numbers;
}

void print(std::FILE* out, const Subject& subject, const std::vector<Row>& rows) {
  const sched::TimingPreset& preset = subject.preset;
  std::fprintf(out, "%s on instances of %gx%s (%s%s)\n", preset.model.name, preset.gpus,
               preset.gpu.name, preset.is_estimate ? "estimate: " : "", preset.source);
  std::fprintf(out, "%9s %9s %9s | %9s %8s %8s | %9s %8s | %9s %8s\n", "tokens", "instances",
               "one, s", "pipeline", "chunk", "sent GB", "sequence", "sent GB", "tensor",
               "sent GB");
  for (std::size_t i = 0; i + 2 < rows.size(); i += 3) {
    const Row &pipeline = rows[i], &sequence = rows[i + 1], &tensor = rows[i + 2];
    std::fprintf(out,
                 "%9" PRIu64 " %9" PRIu64 " %9.2f | %8.2fs %8" PRIu64
                 " %8.1f | %8.2fs %8.1f | %8.2fs %8.1f\n",
                 pipeline.tokens, pipeline.instances, pipeline.one_instance_s, pipeline.seconds,
                 pipeline.chunk_tokens, pipeline.sent_bytes / 1e9, sequence.seconds,
                 sequence.sent_bytes / 1e9, tensor.seconds, tensor.sent_bytes / 1e9);
  }
}

nlohmann::json json_of(const Subject& subject, const std::vector<Row>& rows) {
  nlohmann::json all = nlohmann::json::array();
  for (const Row& row : rows) {
    all.push_back({{"tokens", row.tokens},
                   {"instances", row.instances},
                   {"split", name_of(row.split)},
                   {"seconds", row.seconds},
                   {"one_instance_s", row.one_instance_s},
                   {"speedup", row.speedup()},
                   {"efficiency", row.speedup() / static_cast<double>(row.instances)},
                   {"sent_bytes", row.sent_bytes}});
    if (row.split == Split::kPipeline) all.back()["chunk_tokens"] = row.chunk_tokens;
  }
  return {{"model", subject.preset.model.name},
          {"gpu", subject.preset.gpu.name},
          {"gpus", subject.preset.gpus},
          {"is_estimate", subject.preset.is_estimate},
          {"rows", all}};
}

std::string svg_of(const Subject& subject, const std::vector<Row>& rows) {
  std::vector<PlotLine> lines;
  for (const Row& row : rows) {
    const std::string name =
        std::string(name_of(row.split)) + ", " + std::to_string(row.instances) + " instances";
    auto line = std::find_if(lines.begin(), lines.end(),
                             [&](const PlotLine& known) { return known.name == name; });
    if (line == lines.end()) line = lines.insert(lines.end(), {name, {}});
    line->points.push_back({static_cast<double>(row.tokens) / 1024, row.speedup()});
  }
  char subtitle[160];
  std::snprintf(subtitle, sizeof subtitle,
                "%s, instances of %gx%s, links of %g GB/s; one instance is 1",
                subject.preset.model.name, subject.preset.gpus, subject.preset.gpu.name,
                subject.link.bytes_per_second / 1e9);
  return draw_lines("Speed of a prefill on several instances", subtitle,
                    "input in units of 1,024 tokens", "times as fast as one instance", lines,
                    PlotAxis::kDoubling);
}

Status long_prefill(const Options& options) {
  constexpr std::uint64_t kMostTokens = 1u << 24, kMostInstances = 1024;
  CACHALOT_TRY_ASSIGN(const auto tokens, numbers_of("--tokens", options.tokens, 1, kMostTokens));
  CACHALOT_TRY_ASSIGN(const auto instances,
                      numbers_of("--instances", options.instances, 1, kMostInstances));
  CACHALOT_TRY(check_plot_file(options.plot));
  CACHALOT_TRY(check_are_apart({{"--json", options.json}, {"--plot", options.plot}}));
  CACHALOT_TRY_ASSIGN(sched::TimingPreset preset,
                      sched::find_timing_preset(options.model, options.hardware));
  preset.formula.step_overhead_s = preset.gpu.prompt_step_overhead_s;
  CACHALOT_TRY_ASSIGN(const sched::FormulaModel timing, sched::FormulaModel::make(preset.formula));
  const Subject subject = {
      preset,
      timing,
      {.bytes_per_second = options.link_gb_s * 1e9, .latency_s = options.link_latency_us / 1e6}};
  CACHALOT_TRY_ASSIGN(Output json, Output::open(options.json));
  CACHALOT_TRY_ASSIGN(Output plot, Output::open(options.plot));
  std::vector<Row> rows;
  for (const std::uint64_t count : instances) {
    for (const std::uint64_t length : tokens) {
      for (const Split split : kSplits) {
        rows.push_back(row_of(subject, options, length, count, split));
      }
    }
  }
  print(options.plot == "-" ? stderr : human_output(options.json), subject, rows);
  CACHALOT_TRY(plot.write(svg_of(subject, rows)));
  return json.write_json(json_of(subject, rows));
}

int run(const Options& options) {
  const Status status = long_prefill(options);
  return status ? kExitDone : fail(status.error());
}

}  // namespace

void add_long_prefill(Command& app, Chosen& chosen) {
  auto options = std::make_shared<Options>();
  Command* const command = app.add_subcommand(
      "long-prefill",
      "how long one long prompt takes on several instances, by three ways to split it");
  const auto add = [&](const char* name, auto& value, const std::string& type,
                       const std::string& text) {
    return command->add_option(name, value, text)->type_name(type);
  };
  add("--model", options->model, "NAME", "the model that is served")->capture_default_str();
  add("--hardware", options->hardware, "[Nx]GPU",
      "the GPUs of an instance, of " + sched::gpu_names())
      ->capture_default_str();
  add("--tokens", options->tokens, "N,…", "lengths of the prompt")->capture_default_str();
  add("--instances", options->instances, "N,…", "how many instances share it")
      ->capture_default_str();
  add("--chunk-tokens", options->chunk_tokens, "N",
      "chunks of the pipeline (default: the fastest power of two from 1024 to 65536)")
      ->transform(number(1, 1u << 24));
  add("--link-gb-s", options->link_gb_s, "X", "bandwidth of an instance's link, each way, in GB/s")
      ->transform(decimal(1e-6, 1e6))
      ->capture_default_str();
  add("--link-latency-us", options->link_latency_us, "X", "its latency")
      ->transform(decimal(0, 1e9))
      ->capture_default_str();
  add("--plot", options->plot, "FILE.svg", "draw speed over length, to stdout for -");
  add("--json", options->json, "FILE", "write the result to FILE, or to stdout for -");
  command->footer(
      "pipeline: each instance has a share of the layers, chunks follow each other (CPP).\n"
      "sequence: each instance has a share of the tokens, KV goes around a ring.\n"
      "tensor:   each instance has a share of every matrix, two all-reduces a layer.\n"
      "Example: cachalot long-prefill --instances 2,4 --link-gb-s 25 --plot long-prefill.svg\n"
      "         cachalot long-prefill --model Qwen3-32B --hardware H20 --tokens 131072 --json -");
  command->callback([options, &chosen] { chosen.run = [options] { return run(*options); }; });
}

}  // namespace cachalot::apps
