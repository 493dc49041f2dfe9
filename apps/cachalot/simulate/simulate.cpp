// `cachalot simulate`: a cluster of prefill and decode instances on a trace, for routing and admission policies.

#include <unistd.h>

#include <chrono>
#include <cinttypes>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>

#include "cluster_flags.h"
#include "command.h"
#include "cost.h"
#include "engine_flags.h"
#include "flag_file.h"
#include "output.h"
#include "plot_simulation.h"
#include "recorded_run.h"
#include "sim/cluster/cluster.h"
#include "sim/colocated/colocated.h"
#include "simulate_output.h"
#include "timing_source.h"
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
  std::vector<double> rate_scales = {1};
  TimingFlags timing;
  EngineFlags engine;
  std::uint64_t limit = 0, closed_loop = 0, passes = 1;
  std::string csv, json, plot;
};

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
  CACHALOT_TRY(workload.finish(1));
  workload.repeat(options.passes);
  return workload;
}

// On a terminal; nothing in a pipe.
void show_progress(const SimulateRow& row, double part) {
  if (isatty(STDERR_FILENO) == 0) return;
  std::fprintf(stderr, "\r\033[K%s/%s, rate x %g: %.0f %%", row.policy.c_str(),
               row.admission.c_str(), row.rate_scale, part * 100);
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

// A cluster of one kind, all but routing and admission.
struct Kind {
  std::string name;
  bool is_colocated = false;
  sim::ClusterOptions cluster;
  sim::EngineOptions engine;
  ClusterPrice price = {};
};

Result<std::vector<Kind>> kinds_of(const Options& options, const Timing& timing) {
  std::vector<Kind> kinds;
  const auto add = [&](const ClusterFlags& flags, std::string name) -> Status {
    CACHALOT_TRY_ASSIGN(sim::ClusterOptions cluster, cluster_options(flags));
    cluster.kv_bytes_per_token = timing.kv_bytes_per_token;
    if (flags.decode_capacity_tokens.empty()) {
      cluster.decode_capacity_tokens = timing.decode_capacity_tokens;
    }
    cluster.closed_loop = options.closed_loop;
    CACHALOT_TRY_ASSIGN(ClusterPrice price,
                        price_of(options.cost, std::uint64_t{cluster.prefill} + cluster.decode,
                                 timing.gpus, cluster.pool_capacity_blocks != 0));
    kinds.push_back({.name = std::move(name),
                     .cluster = std::move(cluster),
                     .engine = {},
                     .price = std::move(price)});
    return {};
  };
  const ClusterFlags& flags = options.cluster;
  if (flags.prefill == 0 && flags.colocated != 0 && flags.decode != 0) {
    return Error::make(Code::kInvalidArgument,
                       "--decode: %" PRIu64
                       " without --prefill, expected both or --colocated alone",
                       flags.decode);
  }
  if (flags.prefill != 0 || flags.colocated == 0) {
    CACHALOT_TRY(
        add(flags, std::to_string(flags.prefill) + "P+" + std::to_string(flags.decode) + "D"));
  }
  if (flags.colocated != 0) {
    ClusterFlags same = flags;
    same.prefill = flags.colocated;
    same.decode = 0;
    CACHALOT_TRY(add(same, std::to_string(flags.colocated) + " colocated"));
    kinds.back().is_colocated = true;
    CACHALOT_TRY_ASSIGN(kinds.back().engine, engine_options(options.engine, flags, timing));
  }
  return kinds;
}

Result<sim::ClusterReport> simulate_row(const Kind& kind, const sim::Workload& workload,
                                        const Timing& timing, const SimulateRow& row) {
  sim::ClusterOptions cluster = kind.cluster;
  CACHALOT_TRY_ASSIGN(cluster.routing.kind, sched::parse_routing(row.policy));
  CACHALOT_TRY_ASSIGN(cluster.admission.kind, sched::parse_admission(row.admission));
  sim::EngineOptions engine = kind.engine;
  CACHALOT_TRY_ASSIGN(engine.layerwise.kind, sched::parse_layerwise(row.layerwise));
  const sim::ClusterTiming times = {timing.prefill.get(), timing.decode.get()};
  const auto on_progress = [&](double part) { show_progress(row, part); };
  Result<sim::ClusterReport> report =
      kind.is_colocated ? sim::simulate_colocated({cluster, engine}, workload, times, on_progress)
                        : sim::simulate(cluster, workload, times, on_progress);
  clear_progress();
  return report;
}

Status simulate(const Options& options) {
  if (options.trace.format == kRecordedRunFormat) {
    return simulate_recorded_run(options.recorded, {options.trace.file, options.csv, options.json},
                                 {options.cluster.ttft_slo_ms, options.cluster.tbt_slo_ms},
                                 options.cluster.colocated);
  }
  CACHALOT_TRY_ASSIGN(const auto policies, split_list("--policy", options.policies));
  CACHALOT_TRY_ASSIGN(const auto admissions, split_list("--admission", options.admissions));
  CACHALOT_TRY_ASSIGN(const auto layerwise, split_list("--layerwise", options.engine.layerwise));
  CACHALOT_TRY_ASSIGN(const Timing timing,
                      timing_of(options.timing, options.recorded, options.engine.step_tokens));
  CACHALOT_TRY_ASSIGN(std::vector<Kind> kinds, kinds_of(options, timing));
  if (options.passes > 1 && options.closed_loop == 0 && options.cluster.colocated != 0) {
    return Error::make(Code::kInvalidArgument,
                       "--passes: %" PRIu64
                       " of colocated engines without --closed-loop, expected --closed-loop N",
                       options.passes);
  }
  if (options.cluster.colocated != 0 && !options.cluster.storage_capacity_blocks.empty()) {
    return Error::make(Code::kInvalidArgument,
                       "--storage-capacity-blocks: %s with --colocated, expected it with "
                       "--prefill alone",
                       options.cluster.storage_capacity_blocks.c_str());
  }
  const std::string* const input = &options.trace.file;
  CACHALOT_TRY(check_is_no_input("--csv", options.csv, {input, 1}));
  CACHALOT_TRY(check_is_no_input("--json", options.json, {input, 1}));
  CACHALOT_TRY(check_are_apart({{"--csv", options.csv}, {"--json", options.json}}));
  CACHALOT_TRY(make_folder(options.plot));
  CACHALOT_TRY_ASSIGN(Output csv, Output::open(options.csv));
  CACHALOT_TRY_ASSIGN(Output json, Output::open(options.json));
  for (const std::string& policy : policies) CACHALOT_TRY(sched::parse_routing(policy));
  for (const std::string& admission : admissions) CACHALOT_TRY(sched::parse_admission(admission));
  for (const std::string& name : layerwise) {
    CACHALOT_TRY_ASSIGN(const sched::LayerwiseKind kind, sched::parse_layerwise(name));
    if (kind == sched::LayerwiseKind::kOff || options.cluster.colocated != 0) continue;
    return Error::make(Code::kInvalidArgument,
                       "--layerwise: \"%s\" without colocated engines, expected --colocated N",
                       name.c_str());
  }
  CACHALOT_TRY_ASSIGN(const sim::Workload trace, read_workload(options));
  if (options.passes > 1) {
    for (Kind& kind : kinds) kind.cluster.pass_requests = trace.jobs().size() / options.passes;
  }
  const std::vector<std::string> none = {"off"};
  std::vector<SimulateRow> rows;
  for (const double rate : options.rate_scales) {
    sim::Workload workload = trace;
    workload.rescale(rate);
    for (const Kind& kind : kinds) {
      for (const std::string& policy : policies) {
        for (const std::string& admission : admissions) {
          for (const std::string& layers : kind.is_colocated ? layerwise : none) {
            SimulateRow row{.cluster = kind.name,
                            .policy = policy,
                            .admission = admission,
                            .layerwise = layers,
                            .rate_scale = rate,
                            .names_cluster = kinds.size() > 1,
                            .report = {}};
            const auto begin = std::chrono::steady_clock::now();
            CACHALOT_TRY_ASSIGN(row.report, simulate_row(kind, workload, timing, row));
            row.wall_s =
                std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
            row.cost = cost_of(kind.price, row.report);
            rows.push_back(std::move(row));
          }
        }
      }
    }
  }
  const bool uses_stdout = options.csv == "-" || options.json == "-";
  std::FILE* const out = uses_stdout ? stderr : stdout;
  std::fprintf(out, "times: %s\n", timing.source.c_str());
  print_simulation(out, trace, rows);
  CACHALOT_TRY(csv.write(csv_of_simulation(trace, rows)));
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
  add_engine_flags(*command, options->engine);
  add_timing_flags(*command, options->timing);
  add_cost_flags(*command, options->cost);
  add_recorded_run_flags(*command, options->recorded, options->cluster.colocated);
  add("--rate-scale", options->rate_scales, "X,…",
      "requests come X times as fast as in the trace; several: goodput over the rate")
      ->delimiter(',')
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
      "PD separated against colocated, over the request rate: cachalot simulate --trace "
      "conversation_trace.jsonl.gz --prefill 8 --decode 8 --colocated 16 --rate-scale 1,2,3,4 "
      "--ttft-slo-ms 10000 --tbt-slo-ms 100 --plot plots\n"
      "Money: cachalot simulate --trace conversation_trace.jsonl.gz --prefill 10 --shared-pool "
      "--policy least_loaded --network cxl --gpu-hour-usd 1.5");
  command->callback([options, &chosen] { chosen.run = [options] { return run(*options); }; });
}

}  // namespace cachalot::apps
