// `cachalot simulate --trace-format vllm-run|vllm-bench|…`: one engine's recorded run, again on fake time.
#include <algorithm>
#include <chrono>
#include <cinttypes>
#include <cstdlib>
#include <filesystem>
#include <iterator>
#include <nlohmann/json.hpp>
#include <optional>

#include "command.h"
#include "output.h"
#include "recorded_run.h"
#include "sched/calibration/profile_folder.h"
#include "sched/timing/kv_capacity.h"
#include "sched/timing/profile_model.h"
#include "sim/run/run_comparison.h"
#include "trace/file/byte_source.h"
#include "trace/run/recorded_run.h"
#include "values.h"

namespace cachalot::apps {
namespace {

// Why the engine has so many blocks.
enum class BlocksFrom { kRecorded, kEstimated };

struct Outcome {
  trace::RunFormat format;
  bool has_engine_times;
  std::uint64_t failed;  // requests left out
  std::span<const trace::RecordedRequest> recorded;
  const sim::SimulatedRun& run;
  const sim::EngineOptions& engine;
  BlocksFrom blocks_from;
  const sched::ProfileModel& timing;
  std::optional<sim::CurveErrors> curves;
  std::size_t within_goals;  // requests
  double flops_share;        // mean MFU of the run
  double wall_s;
};

Status check_flags(const RecordedRunFlags& options, const RecordedRunFiles& files,
                   std::uint64_t colocated) {
  if (options.profile.empty()) {
    return Error::make(Code::kInvalidArgument,
                       "--profile: missing, expected the folder of the engine's profile");
  }
  if (options.meta.empty()) {
    return Error::make(Code::kInvalidArgument,
                       "--meta: missing, expected the JSON file of the recorded engine's options");
  }
  if (colocated > 1) {
    return Error::make(Code::kInvalidArgument,
                       "--colocated: %" PRIu64 ", expected 1: a recorded run is of one engine",
                       colocated);
  }
  CACHALOT_TRY(check_is_no_input("--csv", files.csv, files.inputs));
  CACHALOT_TRY(check_is_no_input("--json", files.json, files.inputs));
  return check_are_apart({{"--csv", files.csv}, {"--json", files.json}});
}

// What the user calls another format than its content tells is a mistake.
Result<trace::RecordedRun> read_run(const RecordedRunFiles& files) {
  CACHALOT_TRY_ASSIGN(trace::RecordedRun run, trace::read_recorded_run(files.trace));
  const std::string format = trace::run_format_name(run.format);
  if (files.format == format) return run;
  return Error::make(Code::kInvalidArgument, "--trace-format: %s, but %s is of %s",
                     files.format.c_str(), trace::shown_path(files.trace).c_str(), format.c_str());
}

Result<sched::ProfileModel> timing_of(const RecordedRunFlags& options,
                                      const trace::RunOptions& recorded) {
  CACHALOT_TRY_ASSIGN(const ProfiledEngine engine, profiled_engine(options, recorded));
  return engine.timing(engine.gpu);
}

// Beside FILE.requests.jsonl.gz: FILE.timeseries.csv.gz, if it is there.
std::string seconds_file(const RecordedRunFlags& options, const std::string& trace) {
  if (!options.seconds.empty()) return options.seconds;
  constexpr std::string_view kMark = ".requests.jsonl";
  const std::size_t mark = trace.rfind(kMark);
  if (mark == std::string::npos) return "";
  for (const char* ending : {".timeseries.csv.gz", ".timeseries.csv"}) {
    const std::string file = trace.substr(0, mark) + ending;
    std::error_code ignored;
    if (std::filesystem::exists(file, ignored)) return file;
  }
  return "";
}

double flops_share(std::span<const trace::RecordedRequest> requests, const sim::SimulatedRun& run,
                   const sched::ProfileModel& timing) {
  double flops = 0, busy_s = 0;
  for (const trace::RecordedRequest& request : requests) {
    const auto input = static_cast<double>(request.input_tokens);
    const auto output = static_cast<double>(request.output_tokens);
    flops += (input + output) * timing.model().flops_per_token() +
             timing.model().attention_flops(input + output, 0) +
             output * 2 * timing.model().vocabulary_weights();
  }
  for (const sim::StepRecord& step : run.steps) busy_s += step.end_s - step.start_s;
  return flops / (busy_s * timing.gpu().bf16_flops * static_cast<double>(timing.tensor_parallel()));
}

std::size_t within_goals(std::span<const trace::RecordedRequest> requests,
                         const sim::SimulatedRun& run, const LatencyGoals& goals) {
  std::size_t within = 0;
  for (std::size_t i = 0; i < requests.size(); ++i) {
    const sim::RequestTimes& t = run.requests[i];
    const auto gaps =
        static_cast<double>(std::max<std::uint64_t>(requests[i].output_tokens, 2) - 1);
    const double ttft_ms = (t.first_token_s - t.queued_s) * 1e3;
    const double tbt_ms = (t.last_token_s - t.first_token_s) / gaps * 1e3;
    within += (goals.ttft_ms == 0 || ttft_ms <= goals.ttft_ms) &&
                      (goals.tbt_ms == 0 || tbt_ms <= goals.tbt_ms)
                  ? 1
                  : 0;
  }
  return within;
}

void print_row(std::FILE* out, const char* name, double simulated, double recorded) {
  std::fprintf(out, "%-28s %12.4f %12.4f %+9.2f %%\n", name, simulated, recorded,
               100 * sim::relative_error(simulated, recorded));
}

void print_comparison(std::FILE* out, const sim::RunFigures& simulated,
                      const sim::RunFigures& recorded, const Outcome& outcome) {
  std::fprintf(out, "%-28s %12s %12s %11s\n", "", "simulated", "recorded", "error");
  print_row(out, "TTFT mean, s", simulated.ttft_mean, recorded.ttft_mean);
  print_row(out, "TTFT p50, s", simulated.ttft_p50, recorded.ttft_p50);
  print_row(out, "TTFT p90, s", simulated.ttft_p90, recorded.ttft_p90);
  print_row(out, "TTFT p99, s", simulated.ttft_p99, recorded.ttft_p99);
  if (outcome.has_engine_times)
    print_row(out, "first token - scheduled, s", simulated.service_mean, recorded.service_mean);
  print_row(out, "TPOT mean, ms", simulated.tpot_mean * 1e3, recorded.tpot_mean * 1e3);
  print_row(out, "TPOT p50, ms", simulated.tpot_p50 * 1e3, recorded.tpot_p50 * 1e3);
  print_row(out, "TPOT p99, ms", simulated.tpot_p99 * 1e3, recorded.tpot_p99 * 1e3);
  print_row(out, "makespan, s", simulated.makespan, recorded.makespan);
  if (!outcome.curves) return;
  std::fprintf(out, "over time, mean distance: running requests %.1f %%, KV use ",
               100 * outcome.curves->running);
  if (outcome.curves->has_kv_cache) {
    std::fprintf(out, "%.1f %%\n", 100 * outcome.curves->kv_cache);
  } else {
    std::fprintf(out, "not recorded\n");
  }
}

void print(std::FILE* out, const RecordedRunFlags& options, const Outcome& outcome) {
  const sim::RunFigures simulated = sim::figures_of(outcome.recorded, outcome.run);
  std::fprintf(out, "%zu requests, %s on %s, tensor parallelism %" PRIu64 "\n",
               outcome.recorded.size(), outcome.timing.model().name, outcome.timing.gpu().name,
               outcome.timing.tensor_parallel());
  if (!outcome.has_engine_times) {
    std::fprintf(out, "%s: times as the client saw them, its and the server's work included",
                 trace::run_format_name(outcome.format));
    if (outcome.failed != 0)
      std::fprintf(out, "; %" PRIu64 " failed requests left out", outcome.failed);
    std::fprintf(out, "\n");
  }
  std::fprintf(out,
               "engine: %" PRIu64 " sequences, %" PRIu64 " tokens a step, %" PRIu64
               " blocks of %" PRIu64 " tokens (%s)\n",
               outcome.engine.max_sequences, outcome.engine.step_tokens, outcome.engine.blocks,
               outcome.engine.block_tokens,
               outcome.blocks_from == BlocksFrom::kRecorded
                   ? "recorded"
                   : "estimated: memory less weights and 1.7 GB");
  if (outcome.timing.tensor_parallel() > 1 && outcome.timing.gpu().link_is_estimate) {
    std::fprintf(out,
                 "all-reduce: %.1f GB/s and %.1f us, an estimate (--tp-link; cachalot calibrate "
                 "--run fits it)\n",
                 outcome.timing.gpu().link_bytes_per_second / 1e9,
                 outcome.timing.gpu().link_latency_s * 1e6);
  }
  std::fprintf(out, "%zu steps, %" PRIu64 " preemptions, MFU %.1f %%, %.2f s of computing\n\n",
               outcome.run.steps.size(), outcome.run.preemptions, 100 * outcome.flops_share,
               outcome.wall_s);
  if (options.compare) {
    print_comparison(out, simulated, sim::figures_of(outcome.recorded), outcome);
    return;
  }
  std::fprintf(out, "TTFT mean %.4f s, p50 %.4f s; TPOT mean %.3f ms; makespan %.3f s\n",
               simulated.ttft_mean, simulated.ttft_p50, simulated.tpot_mean * 1e3,
               simulated.makespan);
}

nlohmann::json milliseconds(double mean, double p50, double p90, double p99) {
  return {{"mean", mean * 1e3}, {"p50", p50 * 1e3}, {"p90", p90 * 1e3}, {"p99", p99 * 1e3}};
}

nlohmann::json figures_json(const sim::RunFigures& f) {
  return {{"ttft_ms", milliseconds(f.ttft_mean, f.ttft_p50, f.ttft_p90, f.ttft_p99)},
          {"tbt_ms", milliseconds(f.tpot_mean, f.tpot_p50, f.tpot_p90, f.tpot_p99)},
          {"e2e_ms",
           milliseconds(f.end_to_end_mean, f.end_to_end_p50, f.end_to_end_p90, f.end_to_end_p99)},
          {"service_ms", {{"mean", f.service_mean * 1e3}, {"p50", f.service_p50 * 1e3}}},
          {"makespan_s", f.makespan}};
}

nlohmann::json json_of(const RecordedRunFlags& options, const Outcome& outcome) {
  const sim::RunFigures simulated = sim::figures_of(outcome.recorded, outcome.run);
  nlohmann::json json = figures_json(simulated);
  json["requests"] = outcome.recorded.size();
  json["completed"] = outcome.recorded.size();
  json["rejected"] = 0;
  json["goodput_rps"] = static_cast<double>(outcome.within_goals) / simulated.makespan;
  json["slo_attainment"] =
      static_cast<double>(outcome.within_goals) / static_cast<double>(outcome.recorded.size());
  std::uint64_t hit_tokens = 0, tokens = 0;
  double busy_s = 0;
  for (const sim::RequestTimes& times : outcome.run.requests) hit_tokens += times.hit_tokens;
  for (const trace::RecordedRequest& request : outcome.recorded) tokens += request.input_tokens;
  for (const sim::StepRecord& step : outcome.run.steps) busy_s += step.end_s - step.start_s;
  json["token_hit_rate"] = static_cast<double>(hit_tokens) / static_cast<double>(tokens);
  json["bytes_transferred"] = 0;
  json["wasted_prefill_s"] = 0;
  json["per_instance"] = {{{"requests", outcome.recorded.size()}, {"busy_s", busy_s}}};
  json["steps"] = outcome.run.steps.size();
  json["preemptions"] = outcome.run.preemptions;
  json["mfu"] = outcome.flops_share;
  json["blocks"] = outcome.engine.blocks;
  json["blocks_from"] = outcome.blocks_from == BlocksFrom::kRecorded ? "recorded" : "estimate";
  json["sim_s"] = outcome.run.steps.empty() ? 0.0 : outcome.run.steps.back().end_s;
  json["wall_s"] = outcome.wall_s;
  if (!options.compare) return json;
  const sim::RunFigures recorded = sim::figures_of(outcome.recorded);
  json["recorded"] = figures_json(recorded);
  json["compare"] = {
      {"ttft_mean_error", sim::relative_error(simulated.ttft_mean, recorded.ttft_mean)},
      {"ttft_p50_error", sim::relative_error(simulated.ttft_p50, recorded.ttft_p50)},
      {"service_mean_error", sim::relative_error(simulated.service_mean, recorded.service_mean)},
      {"tpot_mean_error", sim::relative_error(simulated.tpot_mean, recorded.tpot_mean)},
      {"makespan_error", sim::relative_error(simulated.makespan, recorded.makespan)}};
  if (!outcome.has_engine_times) {
    json["compare"].erase("service_mean_error");
    json["recorded"].erase("service_ms");
  }
  if (outcome.curves) {
    json["compare"]["running_mean_distance"] = outcome.curves->running;
    if (outcome.curves->has_kv_cache)
      json["compare"]["kv_cache_mean_distance"] = outcome.curves->kv_cache;
  }
  return json;
}

std::string csv_of(const Outcome& outcome) {
  std::string csv =
      "request,input_tokens,output_tokens,arrival_s,queued_s,scheduled_s,first_token_s,"
      "last_token_s,preemptions\n";
  for (std::size_t i = 0; i < outcome.recorded.size(); ++i) {
    const sim::RequestTimes& t = outcome.run.requests[i];
    char line[256];
    std::snprintf(line, sizeof line,
                  "%zu,%" PRIu64 ",%" PRIu64 ",%.6f,%.6f,%.6f,%.6f,%.6f,%" PRIu64 "\n", i,
                  outcome.recorded[i].input_tokens, outcome.recorded[i].output_tokens, t.arrival_s,
                  t.queued_s, t.scheduled_s, t.first_token_s, t.last_token_s, t.preemptions);
    csv += line;
  }
  return csv;
}

}  // namespace

Result<ProfiledEngine> profiled_engine(const RecordedRunFlags& flags,
                                       const trace::RunOptions& recorded) {
  ProfiledEngine engine;
  CACHALOT_TRY_ASSIGN(engine.tables, sched::read_profile_folder(flags.profile));
  const sched::ProfileTables& tables = engine.tables;
  CACHALOT_TRY_ASSIGN(engine.model, sched::find_served_model(recorded.model));
  CACHALOT_TRY_ASSIGN(const sched::ServedModel profiled, sched::find_served_model(tables.model));
  if (std::string_view(engine.model.name) != profiled.name) {
    return Error::make(Code::kInvalidArgument, "--profile: it is of %s, but the run is of %s",
                       profiled.name, engine.model.name);
  }
  if (tables.tensor_parallel != recorded.tensor_parallel) {
    return Error::make(Code::kInvalidArgument,
                       "--profile: it is of tensor parallelism %" PRIu64
                       ", but the run's engine had %" PRIu64,
                       tables.tensor_parallel, recorded.tensor_parallel);
  }
  CACHALOT_TRY_ASSIGN(engine.gpu, sched::find_gpu(tables.hardware));
  engine.gpu = with_link(engine.gpu, flags);
  // vLLM records graphs for up to twice its sequences, and 512 tokens at most.
  engine.options = {
      .largest_graph_tokens = std::min<std::uint64_t>(2 * recorded.max_sequences, 512),
      .chunk_tokens = recorded.step_tokens};
  return engine;
}

Result<sim::EngineOptions> engine_of(const trace::RunOptions& recorded,
                                     const sched::ProfileModel& timing) {
  sim::EngineOptions engine = {.block_tokens = recorded.block_tokens,
                               .max_sequences = recorded.max_sequences,
                               .step_tokens = recorded.step_tokens,
                               .prefix_caching = recorded.prefix_caching};
  if (recorded.blocks) {
    // vLLM keeps one block for padding.
    engine.blocks = *recorded.blocks - 1;
    return engine;
  }
  CACHALOT_TRY_ASSIGN(
      engine.blocks,
      sched::estimate_kv_blocks(timing.gpu(), timing.model(),
                                {.tensor_parallel = static_cast<double>(timing.tensor_parallel()),
                                 .memory_utilization = recorded.gpu_memory_utilization,
                                 .block_tokens = static_cast<double>(recorded.block_tokens)}));
  return engine;
}

sched::GpuSpec with_link(sched::GpuSpec gpu, const RecordedRunFlags& flags) {
  if (const Result<sched::LinkSpec> link = sched::find_link(flags.link); link) {
    gpu.link_bytes_per_second = link->bytes_per_second;
    gpu.link_latency_s = link->latency_s;
  }
  if (!flags.link_gb_s.empty())
    gpu.link_bytes_per_second = std::strtod(flags.link_gb_s.c_str(), nullptr) * 1e9;
  if (!flags.link_us.empty())
    gpu.link_latency_s = std::strtod(flags.link_us.c_str(), nullptr) * 1e-6;
  if (!flags.link_gb_s.empty() && !flags.link_us.empty()) gpu.link_is_estimate = false;
  return gpu;
}

void add_recorded_run_flags(Command& command, RecordedRunFlags& flags, std::uint64_t& colocated) {
  if (command.get_option_no_throw("--colocated") == nullptr) {
    command
        .add_option(
            "--colocated", colocated,
            "engines that compute prompts in chunks beside their decodes; with --prefill: both "
            "kinds of cluster, compared")
        ->type_name("N")
        ->transform(number(1, 4096));
  }
  const auto add = [&](const char* name, std::string& value, const std::string& type,
                       const std::string& text) {
    return command.add_option(name, value, text)->type_name(type);
  };
  add("--profile", flags.profile, "FOLDER",
      "measured operator times of a GPU and a model; a recorded run needs those of its engine");
  add("--meta", flags.meta, "FILE", "of a recorded run: the engine's options, as JSON");
  add("--seconds", flags.seconds, "FILE",
      "of a recorded run: its CSV of one row a second (default: beside --trace)");
  add("--tp-link", flags.link, sched::link_names("|"),
      "with --profile: the link among the GPUs of an engine (default: the GPU's)")
      ->check(Validator(
          [](std::string& name) -> std::string {
            const Result<sched::LinkSpec> link = sched::find_link(name);
            return link ? "" : link.error().message;
          },
          ""));
  add("--tp-link-gb-s", flags.link_gb_s, "X",
      "with --profile: all-reduce bandwidth among the GPUs of an engine, instead of the GPU's")
      ->transform(decimal(0.001, 1e6));
  add("--tp-link-us", flags.link_us, "X", "with --profile: what a small all-reduce takes")
      ->transform(decimal(0, 1e6));
  command.add_flag("--compare", flags.compare,
                   "of a recorded run: simulated and recorded figures side by side");
}

std::vector<std::string> inputs_of(const RecordedRunFlags& flags, const std::string& trace) {
  std::vector<std::string> inputs = {flags.meta, seconds_file(flags, trace)};
  if (flags.profile.empty()) return inputs;
  std::error_code ignored;
  for (const auto& entry : std::filesystem::directory_iterator(flags.profile, ignored)) {
    inputs.push_back(entry.path());
  }
  return inputs;
}

Status check_recorded_run_flags(const Command& command) {
  constexpr std::string_view kUsed[] = {
      "--trace",   "--trace-format", "--profile",     "--meta",       "--seconds",
      "--tp-link", "--tp-link-gb-s", "--tp-link-us",  "--compare",    "--colocated",
      "--csv",     "--json",         "--ttft-slo-ms", "--tbt-slo-ms", "--cluster"};
  for (const Flag* const option : command.get_options()) {
    const std::string name = option->get_name();
    if (option->count() == 0 || std::ranges::find(kUsed, name) != std::end(kUsed)) continue;
    return Error::make(Code::kInvalidArgument,
                       "%s: given with a recorded run, which is repeated as it was", name.c_str());
  }
  return {};
}

Status simulate_recorded_run(const RecordedRunFlags& options, const RecordedRunFiles& files,
                             const LatencyGoals& goals, std::uint64_t colocated,
                             const nlohmann::json& source) {
  CACHALOT_TRY(check_flags(options, files, colocated));
  CACHALOT_TRY_ASSIGN(Output csv, Output::open(files.csv));
  CACHALOT_TRY_ASSIGN(Output json, Output::open(files.json));
  const auto begin = std::chrono::steady_clock::now();
  CACHALOT_TRY_ASSIGN(const trace::RecordedRun file, read_run(files));
  const std::span<const trace::RecordedRequest> recorded = file.requests;
  CACHALOT_TRY_ASSIGN(const trace::RunOptions run_options, trace::read_run_options(options.meta));
  CACHALOT_TRY_ASSIGN(const sched::ProfileModel timing, timing_of(options, run_options));
  CACHALOT_TRY_ASSIGN(const sim::EngineOptions engine, engine_of(run_options, timing));
  CACHALOT_TRY_ASSIGN(const sim::SimulatedRun run, sim::simulate_run(recorded, engine, timing));
  std::optional<sim::CurveErrors> curves;
  if (const std::string csv_file = seconds_file(options, files.trace);
      options.compare && !csv_file.empty()) {
    CACHALOT_TRY_ASSIGN(const auto seconds, trace::read_run_seconds(csv_file));
    curves = sim::curve_errors(seconds, run, engine.blocks);
  }
  const std::chrono::duration<double> wall = std::chrono::steady_clock::now() - begin;
  const Outcome outcome = {
      .format = file.format,
      .has_engine_times = file.has_engine_times(),
      .failed = file.failed,
      .recorded = recorded,
      .run = run,
      .engine = engine,
      .blocks_from = run_options.blocks ? BlocksFrom::kRecorded : BlocksFrom::kEstimated,
      .timing = timing,
      .curves = curves,
      .within_goals = within_goals(recorded, run, goals),
      .flops_share = flops_share(recorded, run, timing),
      .wall_s = wall.count()};
  std::FILE* const people = files.csv == "-" ? stderr : human_output(files.json);
  std::fprintf(people, "trace: %s\n", trace::shown_path(files.trace).c_str());
  print(people, options, outcome);
  nlohmann::json result = source;
  result.update(json_of(options, outcome));
  return write_together({{&csv, csv_of(outcome)}, {&json, json_line(result)}});
}

}  // namespace cachalot::apps
