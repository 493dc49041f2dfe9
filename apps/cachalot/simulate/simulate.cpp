// `cachalot simulate`: a cluster of prefill and decode instances on a trace, for routing and admission policies.

#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>

#include "cluster_flags.h"
#include "command.h"
#include "cost.h"
#include "flag_file.h"
#include "output.h"
#include "plot_simulation.h"
#include "recorded_run.h"
#include "sched/timing/formula_model.h"
#include "sched/timing/timing_preset.h"
#include "sim/cluster/cluster.h"
#include "simulate_output.h"
#include "trace/request/request_trace.h"
#include "trace_flags.h"
#include "values.h"

namespace cachalot::apps {
namespace {

struct Options {
  TraceFlags trace;
  ClusterFlags cluster;
  CostFlags cost;
  RecordedRunFlags recorded;
  std::vector<std::string> policies = {"conductor"};
  std::vector<std::string> admissions = {"none"};
  double rate_scale = 1;
  std::string model = "LLaMA3-70B", hardware = "8xA800_SXM";
  double decode_memory_gb_s = 0, decode_overhead_ms = -1;  // the preset's
  std::uint64_t limit = 0, closed_loop = 0, passes = 1;
  std::string csv, json, plot;
};

// What the policies and the cluster need to know of model and hardware.
struct Timing {
  std::unique_ptr<sched::TimingModel> prefill, decode;
  double kv_bytes_per_token = 0;
  double gpus = 1;  // of an instance
  std::uint64_t decode_capacity_tokens = 0;
  std::string source;
};

// Prefill as measured, without what an engine adds to a step: the correction has that. Decode is an estimate.
Result<Timing> timing_of(const Options& options) {
  CACHALOT_TRY_ASSIGN(const sched::TimingPreset preset,
                      sched::find_timing_preset(options.model, options.hardware));
  sched::FormulaParameters p = preset.formula;
  p.step_overhead_s = 0;
  Timing timing;
  CACHALOT_TRY_ASSIGN(sched::FormulaModel prefill, sched::FormulaModel::make(p));
  p.step_overhead_s = preset.formula.step_overhead_s;
  if (options.decode_overhead_ms >= 0) p.step_overhead_s = options.decode_overhead_ms / 1000;
  if (options.decode_memory_gb_s > 0) p.memory_bytes_per_second = options.decode_memory_gb_s * 1e9;
  CACHALOT_TRY_ASSIGN(sched::FormulaModel decode, sched::FormulaModel::make(p));
  timing.prefill = std::make_unique<sched::FormulaModel>(prefill);
  timing.decode = std::make_unique<sched::FormulaModel>(decode);
  timing.gpus = preset.gpus;
  timing.kv_bytes_per_token = p.kv_bytes_per_token;
  timing.decode_capacity_tokens = preset.kv_capacity_tokens;
  timing.source = std::string(preset.is_estimate ? "estimate: " : "") + preset.source;
  return timing;
}

Result<sim::Workload> read_workload(const Options& options) {
  CACHALOT_TRY_ASSIGN(trace::RequestTrace reader, open_trace_with_ids(options.trace));
  sim::Workload workload(reader.block_tokens());
  trace::Request request;
  while (options.limit == 0 || workload.jobs().size() < options.limit) {
    CACHALOT_TRY_ASSIGN(const bool more, reader.next(request));
    if (!more) break;
    CACHALOT_TRY(workload.add(request.hash_ids, request.input_tokens, request.output_tokens,
                              request.timestamp_ms));
  }
  CACHALOT_TRY(workload.finish(options.rate_scale));
  workload.repeat(options.passes);
  return workload;
}

// On a terminal; nothing in a pipe.
void show_progress(const SimulateRow& row, double part) {
  if (isatty(STDERR_FILENO) == 0) return;
  std::fprintf(stderr, "\r\033[K%s/%s: %.0f %%", row.policy.c_str(), row.admission.c_str(),
               part * 100);
}
void clear_progress() {
  if (isatty(STDERR_FILENO) != 0) std::fputs("\r\033[K", stderr);
}

// The folder is made if it is not there.
Status write_drawings(const Options& options, std::span<const SimulateRow> rows) {
  for (const Drawing& drawing : draw_simulation(options.trace.file, rows)) {
    CACHALOT_TRY_ASSIGN(Output output, Output::open(options.plot + "/" + drawing.file));
    CACHALOT_TRY(output.write(drawing.svg));
  }
  return {};
}

Status make_folder(const std::string& folder) {
  if (folder.empty()) return {};
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  if (!error) return {};
  return Error::make(Code::kInvalidArgument, "--plot: \"%.120s\": %s, expected a folder",
                     folder.c_str(), error.message().c_str());
}

Status simulate(const Options& options) {
  if (options.trace.format == kRecordedRunFormat) {
    return simulate_recorded_run(options.recorded, {options.trace.file, options.csv, options.json},
                                 {options.cluster.ttft_slo_ms, options.cluster.tbt_slo_ms},
                                 options.cluster.colocated);
  }
  CACHALOT_TRY_ASSIGN(const auto policies, split_list("--policy", options.policies));
  CACHALOT_TRY_ASSIGN(const auto admissions, split_list("--admission", options.admissions));
  CACHALOT_TRY_ASSIGN(sim::ClusterOptions cluster, cluster_options(options.cluster));
  CACHALOT_TRY_ASSIGN(const Timing timing, timing_of(options));
  cluster.kv_bytes_per_token = timing.kv_bytes_per_token;
  if (options.cluster.decode_capacity_tokens.empty()) {
    cluster.decode_capacity_tokens = timing.decode_capacity_tokens;
  }
  CACHALOT_TRY_ASSIGN(const ClusterPrice price,
                      price_of(options.cost, std::uint64_t{cluster.prefill} + cluster.decode,
                               timing.gpus, cluster.pool_capacity_blocks != 0));
  cluster.closed_loop = options.closed_loop;
  const std::string* const input = &options.trace.file;
  CACHALOT_TRY(check_is_no_input("--csv", options.csv, {input, 1}));
  CACHALOT_TRY(check_is_no_input("--json", options.json, {input, 1}));
  CACHALOT_TRY(check_are_apart({{"--csv", options.csv}, {"--json", options.json}}));
  CACHALOT_TRY(make_folder(options.plot));
  CACHALOT_TRY_ASSIGN(Output csv, Output::open(options.csv));
  CACHALOT_TRY_ASSIGN(Output json, Output::open(options.json));
  std::vector<SimulateRow> rows;
  for (const std::string& policy : policies) {
    CACHALOT_TRY(sched::parse_routing(policy));
    for (const std::string& admission : admissions) {
      CACHALOT_TRY(sched::parse_admission(admission));
      rows.push_back({.policy = policy, .admission = admission, .report = {}});
    }
  }
  CACHALOT_TRY_ASSIGN(const sim::Workload workload, read_workload(options));
  if (options.passes > 1) cluster.pass_requests = workload.jobs().size() / options.passes;
  for (SimulateRow& row : rows) {
    CACHALOT_TRY_ASSIGN(cluster.routing.kind, sched::parse_routing(row.policy));
    CACHALOT_TRY_ASSIGN(cluster.admission.kind, sched::parse_admission(row.admission));
    const auto begin = std::chrono::steady_clock::now();
    Result<sim::ClusterReport> report =
        sim::simulate(cluster, workload, {timing.prefill.get(), timing.decode.get()},
                      [&](double part) { show_progress(row, part); });
    clear_progress();
    if (!report) return report.error();
    row.wall_s = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
    row.report = *std::move(report);
    row.cost = cost_of(price, row.report);
  }
  const bool uses_stdout = options.csv == "-" || options.json == "-";
  print_simulation(uses_stdout ? stderr : stdout, workload, rows);
  CACHALOT_TRY(csv.write(csv_of_simulation(workload, rows)));
  if (!options.plot.empty()) CACHALOT_TRY(write_drawings(options, rows));
  return json.write_json(json_of_simulation(rows));
}

int run(const Options& options) {
  const Status status = simulate(options);
  return status ? kExitDone : fail(status.error());
}

}  // namespace

void add_simulate(CLI::App& app, Chosen& chosen) {
  auto options = std::make_shared<Options>();
  CLI::App* const command =
      app.add_subcommand("simulate",
                         "simulates a cluster that serves a trace, for routing and "
                         "admission policies");
  const auto add = [&](const char* name, auto& value, const std::string& type,
                       const std::string& text) {
    return command->add_option(name, value, text)->type_name(type);
  };
  add_trace_flags(*command, options->trace);
  add("--policy", options->policies, sched::routing_names("|") + ",…",
      "routing of requests to prefill instances; several make one table")
      ->capture_default_str();
  add("--admission", options->admissions, sched::admission_names("|") + ",…",
      "which requests are rejected under overload; several make one table")
      ->capture_default_str();
  add_cluster_flags(*command, options->cluster);
  add("--model", options->model, "NAME", "the model that is served")->capture_default_str();
  add("--hardware", options->hardware, "[Nx]GPU", "the GPUs of an instance")->capture_default_str();
  add("--decode-memory-gb-s", options->decode_memory_gb_s, "X",
      "memory bandwidth that a decode instance reaches (default: 60 % of the data sheet, an "
      "estimate)")
      ->transform(decimal(1e-3, 1e9));
  add("--decode-overhead-ms", options->decode_overhead_ms, "X",
      "of each decode step, beside reading weights and KV (default: 8, an estimate)")
      ->transform(decimal(0, 1e6));
  add_cost_flags(*command, options->cost);
  add_recorded_run_flags(*command, options->recorded, options->cluster.colocated);
  add("--rate-scale", options->rate_scale, "X", "requests come X times as fast as in the trace")
      ->transform(decimal(1e-6, 1e6))
      ->capture_default_str();
  add("--limit", options->limit, "N", "only the first N requests")
      ->transform(number(1, ~std::uint64_t{0}));
  add("--closed-loop", options->closed_loop, "N",
      "N requests in flight, whatever the trace's times: one comes when another ends")
      ->transform(number(1, 1u << 24));
  add("--passes", options->passes, "N",
      "play the trace N times, each after the end of the one before, figures apart: the first "
      "fills caches, the next ones hit them")
      ->transform(number(1, 1000));
  add("--plot", options->plot, "DIR", "draw TTFT and load over time into this folder, as SVG");
  add("--csv", options->csv, "FILE", "a line for each request to FILE, or to stdout for -");
  add("--json", options->json, "FILE", "write the result to FILE, or to stdout for -");
  add_flag_file(*command, "--cluster");
  command->footer(
      "Example: cachalot simulate --trace conversation_trace.jsonl.gz --prefill 8 --decode 8 "
      "--policy random,least_loaded,local,conductor --json -\n"
      "         cachalot simulate --trace conversation_trace.jsonl.gz --prefill 10 --shared-pool "
      "--policy least_loaded --network cxl --gpu-hour-usd 1.5");
  command->callback([options, &chosen] { chosen.run = [options] { return run(*options); }; });
}

}  // namespace cachalot::apps
