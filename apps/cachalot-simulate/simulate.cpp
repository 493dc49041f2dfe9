// `cachalot simulate`: a cluster of prefill and decode instances on a trace, for routing and admission policies.

#include <unistd.h>

#include <algorithm>
#include <cinttypes>
#include <deque>
#include <iterator>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>

#include "base/words.h"
#include "command.h"
#include "flag_file.h"
#include "flag_uses.h"
#include "given_flags.h"
#include "output.h"
#include "plot_policy_map.h"
#include "plot_simulation.h"
#include "policy_map.h"
#include "row_simulation.h"
#include "simulate_options.h"
#include "simulate_output.h"
#include "trace/request/request_trace.h"
#include "trace/run/recorded_run.h"
#include "values.h"
#include "varying_flags.h"

namespace cachalot::apps {
namespace {

std::string formats() {
  return "auto|" + trace::trace_format_names("|") + "|vllm-run|vllm-bench|sglang-bench|aiperf-run";
}

// Files that no result may take the place of.
std::vector<std::string> inputs_of(const BoundFlags& flags) {
  const SimulateOptions& options = flags.options;
  std::vector<std::string> inputs = {options.trace.file, options.timing.calibration};
  const std::string cluster = flag_file_of(flags.command);
  if (!cluster.empty()) inputs.push_back(cluster);
  std::ranges::move(inputs_of(options.recorded, options.trace.file), std::back_inserter(inputs));
  return inputs;
}

Result<sim::Workload> read_workload(const SimulateOptions& options) {
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
void show_progress(const std::string& where, const SimulateRow& row, double part) {
  if (isatty(STDERR_FILENO) == 0) return;
  std::fprintf(stderr, "\r\033[K%s%s, rate x %g: %.0f %%", where.c_str(), name_of(row).c_str(),
               row.rate_scale, part * 100);
}
void clear_progress() {
  if (isatty(STDERR_FILENO) != 0) std::fputs("\r\033[K", stderr);
}

// Where the result goes; tried before the work begins.
struct Outputs {
  Output csv, json;
  ResultFolder folder;  // of drawings
  std::FILE* people;
};

Status check_outputs(const BoundFlags& flags) {
  const SimulateOptions& options = flags.options;
  const std::vector<std::string> inputs = inputs_of(flags);
  CACHALOT_TRY(check_is_no_input("--csv", options.csv, inputs));
  CACHALOT_TRY(check_is_no_input("--json", options.json, inputs));
  return check_are_apart({{"--csv", options.csv}, {"--json", options.json}});
}

Result<Outputs> open_outputs(const SimulateOptions& options) {
  CACHALOT_TRY_ASSIGN(Output csv, Output::open(options.csv));
  CACHALOT_TRY_ASSIGN(Output json, Output::open(options.json));
  CACHALOT_TRY_ASSIGN(ResultFolder folder, ResultFolder::make("--plot", options.plot));
  const bool uses_stdout = options.csv == "-" || options.json == "-";
  return Outputs{std::move(csv), std::move(json), std::move(folder), uses_stdout ? stderr : stdout};
}

void print_source(std::FILE* out, const SimulateOptions& options,
                  std::span<const SimulateRow> rows) {
  std::fprintf(out, "trace: %s, seed %" PRIu64 "\n", base::printable(options.trace.file).c_str(),
               options.cluster.seed);
  print_times(out, rows);
}

// What results came from: read before policies and maps set flags of their own.
nlohmann::json json_of_source(const BoundFlags& flags) {
  return {{"trace", flags.options.trace.file},
          {"seed", flags.options.cluster.seed},
          {"flags", json_of_flags(flags.command)}};
}

// All files, or none. @param csv  of a table
Status write_results(const BoundFlags& flags, Outputs& outputs, std::vector<Drawing> drawings,
                     std::string csv, const nlohmann::json& json) {
  const SimulateOptions& options = flags.options;
  const std::vector<std::string> inputs = inputs_of(flags);
  std::vector<OutputText> texts;
  if (!options.csv.empty()) texts.push_back({&outputs.csv, std::move(csv)});
  std::deque<Output> opened;
  for (Drawing& drawing : drawings) {
    const std::string file = options.plot + "/" + drawing.file;
    CACHALOT_TRY(check_is_no_input("--plot", file, inputs));
    CACHALOT_TRY(check_are_apart({{"--plot", file}, {"--csv", options.csv}}));
    CACHALOT_TRY(check_are_apart({{"--plot", file}, {"--json", options.json}}));
    CACHALOT_TRY_ASSIGN(Output output, Output::open(file));
    texts.push_back({&opened.emplace_back(std::move(output)), std::move(drawing.svg)});
  }
  if (!options.json.empty()) texts.push_back({&outputs.json, json_line(json)});
  return write_together(std::move(texts));
}

// The workload at each rate.
class Workloads {
 public:
  explicit Workloads(const sim::Workload& trace) : trace_(trace) {}

  const sim::Workload& at(double rate_scale) {
    const auto [found, is_new] = by_rate_.try_emplace(rate_scale, trace_);
    if (is_new) found->second.rescale(rate_scale);
    return found->second;
  }

 private:
  const sim::Workload& trace_;
  std::map<double, sim::Workload> by_rate_;
};

Status simulate_table(const BoundFlags& flags, RowSimulator& simulator) {
  const SimulateOptions& options = flags.options;
  nlohmann::json source = json_of_source(flags);
  CACHALOT_TRY_ASSIGN(const std::vector<PolicySetup> setups, simulator.prepare({}));
  CACHALOT_TRY(simulator.check_uses({&setups, 1}, {}));
  CACHALOT_TRY_ASSIGN(Outputs outputs, open_outputs(options));
  CACHALOT_TRY_ASSIGN(const sim::Workload trace, read_workload(options));
  Workloads workloads(trace);
  std::vector<SimulateRow> rows;
  for (const double rate : options.rate_scales) {
    Result<std::vector<SimulateRow>> found = simulator.simulate(
        setups, workloads.at(rate), rate,
        [](const SimulateRow& row, double part) { show_progress("", row, part); });
    clear_progress();
    if (!found) return found.error();
    std::ranges::move(*found, std::back_inserter(rows));
  }
  print_source(outputs.people, options, rows);
  print_simulation(outputs.people, trace, rows);
  std::vector<Drawing> drawings;
  if (!options.plot.empty()) drawings = draw_simulation(options.trace.file, rows);
  source.update(json_of_simulation(rows));
  return write_results(flags, outputs, std::move(drawings),
                       options.csv.empty() ? "" : csv_of_simulation(trace, rows), source);
}

// What only a table, or only a map with goals, can have.
Status check_map(const BoundFlags& flags, const PolicyMap& map) {
  const SimulateOptions& options = flags.options;
  if (!options.csv.empty()) {
    return Error::make(Code::kInvalidArgument, "--csv: %.120s with --map, expected --json",
                       options.csv.c_str());
  }
  for (std::size_t cell = 0; cell < map.cells(); ++cell) {
    CACHALOT_TRY_ASSIGN(const SimulateOptions changed, flags.with(map.values_of(cell)));
    if (changed.rate_scales.size() != 1) {
      return Error::make(Code::kInvalidArgument,
                         "--rate-scale: %zu rates with --map, expected one, or it as an axis",
                         changed.rate_scales.size());
    }
    if (map.figure->needs_goals && changed.cluster.ttft_slo_ms == 0 &&
        changed.cluster.tbt_slo_ms == 0) {
      return Error::make(Code::kInvalidArgument,
                         "--map-by: %s without a goal, expected --ttft-slo-ms or --tbt-slo-ms",
                         map.figure->name);
    }
  }
  return {};
}

Status simulate_map(const BoundFlags& flags, RowSimulator& simulator) {
  const SimulateOptions& options = flags.options;
  nlohmann::json source = json_of_source(flags);
  PolicyMap map;
  CACHALOT_TRY_ASSIGN(map.figure,
                      find_map_figure(options.map_by.empty() ? "mean_ttft" : options.map_by));
  CACHALOT_TRY_ASSIGN(map.axes, parse_map_axes(options.map));
  CACHALOT_TRY(simulator.check_axes(map.axes));
  CACHALOT_TRY(check_map(flags, map));
  // All cells before the first one is simulated: a wrong value in the last one costs no time.
  std::vector<std::vector<PolicySetup>> setups(map.cells());
  std::vector<double> rates(map.cells());
  for (std::size_t cell = 0; cell < map.cells(); ++cell) {
    const auto values = map.values_of(cell);
    CACHALOT_TRY_ASSIGN(setups[cell], simulator.prepare(values));
    CACHALOT_TRY_ASSIGN(const SimulateOptions changed, flags.with(values));
    rates[cell] = changed.rate_scales.front();
  }
  const std::size_t rows_of_cell = simulator.rows_of(setups.front());
  if (rows_of_cell < 2 || rows_of_cell > kMostMapRows) {
    return Error::make(Code::kInvalidArgument,
                       "--map: %zu row%s a cell, expected 2 to %zu: --policy NAME,NAME…",
                       rows_of_cell, rows_of_cell == 1 ? "" : "s", kMostMapRows);
  }
  CACHALOT_TRY(simulator.check_uses(setups, map.axes));
  CACHALOT_TRY_ASSIGN(Outputs outputs, open_outputs(options));
  CACHALOT_TRY_ASSIGN(const sim::Workload trace, read_workload(options));
  Workloads workloads(trace);
  for (std::size_t cell = 0; cell < map.cells(); ++cell) {
    const std::string where =
        "cell " + std::to_string(cell + 1) + " of " + std::to_string(map.cells()) + ", ";
    Result<std::vector<SimulateRow>> found = simulator.simulate(
        setups[cell], workloads.at(rates[cell]), rates[cell],
        [&](const SimulateRow& row, double part) { show_progress(where, row, part); });
    clear_progress();
    if (!found) return found.error();
    for (SimulateRow& row : *found) {
      row.report.records = {};  // a map needs no single requests, and has many rows
      if (cell == 0) map.names.push_back(name_in_map(row));
      map.rows.push_back(std::move(row));
    }
  }
  print_source(outputs.people, options, map.rows_of(0));
  print_policy_map(outputs.people, map);
  std::vector<Drawing> drawings;
  if (!options.plot.empty()) {
    drawings.push_back({"policy-map.svg", draw_policy_map(options.trace.file, map)});
  }
  source.update(json_of_policy_map(map));
  return write_results(flags, outputs, std::move(drawings), "", source);
}

Status simulate(const BoundFlags& flags) {
  const SimulateOptions& options = flags.options;
  if (trace::parse_run_format(options.trace.format)) {
    CACHALOT_TRY(check_recorded_run_flags(flags.command));
    CACHALOT_TRY(
        check_uses(given_flags(flags.command), kRecordedRun | kReduceLink | kReducePreset |
                                                   (options.recorded.compare ? kComparison : 0u)));
    return simulate_recorded_run(
        options.recorded,
        {options.trace.file, options.trace.format, options.csv, options.json, inputs_of(flags)},
        {options.cluster.ttft_slo_ms, options.cluster.tbt_slo_ms}, options.cluster.colocated,
        {{"trace", options.trace.file}, {"flags", json_of_flags(flags.command)}});
  }
  if (!trace::parse_trace_format(options.trace.format)) {
    return Error::make(Code::kInvalidArgument, "--trace-format: \"%.60s\", expected one of: %s",
                       options.trace.format.c_str(), formats().c_str());
  }
  for (std::size_t i = 0; i < options.rate_scales.size(); ++i) {
    for (std::size_t j = 0; j < i; ++j) {
      if (options.rate_scales[i] != options.rate_scales[j]) continue;
      return Error::make(Code::kInvalidArgument, "--rate-scale: %g twice, expected it once",
                         options.rate_scales[i]);
    }
  }
  CACHALOT_TRY(check_outputs(flags));
  CACHALOT_TRY_ASSIGN(RowSimulator simulator, RowSimulator::make(flags));
  return options.map.empty() ? simulate_table(flags, simulator) : simulate_map(flags, simulator);
}

int run(const BoundFlags& flags) {
  const Status status = simulate(flags);
  return status ? kExitDone : fail(with_flag_file(flags.command, status.error()));
}

}  // namespace

void add_simulate(Command& app, Chosen& chosen) {
  auto options = std::make_shared<SimulateOptions>();
  Command* const command =
      app.add_subcommand("simulate",
                         "simulates a cluster that serves a trace, for routing and "
                         "admission policies");
  const auto add = [&](const char* name, auto& value, const std::string& type,
                       const std::string& text) {
    return command->add_option(name, value, text)->type_name(type);
  };
  add_trace_flags(*command, options->trace);
  command->get_option("--trace-format")
      ->type_name(formats())
      ->description(
          "auto: a trace, as its content tells; vllm-run: a recorded run of an engine, vllm-bench, "
          "sglang-bench, aiperf-run: one of a benchmark's client, with --profile and --meta");
  add("--policy", options->policies, sched::routing_names("|") + ",…",
      "routing of requests to prefill instances; several make one table; NAME+FLAG=VALUE: with a "
      "flag of its own, as in least_loaded+shared-pool")
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
  add("--map", options->map, "FLAG=V,V…",
      "twice: the winner of the policies over two flags; each names a flag by its name without --, "
      "and its values")
      ->check(map_axis());
  add("--map-by", options->map_by, map_figure_names("|"), "what a map compares")
      ->default_str("mean_ttft");
  add("--limit", options->limit, "N", "only the first N requests")
      ->transform(number(1, ~std::uint64_t{0}));
  add("--closed-loop", options->closed_loop, "N",
      "N requests in flight, whatever the trace's times: one comes when another ends")
      ->transform(number(1, 1u << 24));
  add("--passes", options->passes, "N",
      "play the trace N times, each after the end of the one before, figures apart: the first "
      "fills caches, the next ones hit them")
      ->transform(number(1, 1000));
  add("--plot", options->plot, "DIR",
      "draw TTFT and load over time, or the map, into this folder, as SVG");
  add("--csv", options->csv, "FILE", "a line for each request to FILE, or to stdout for -");
  add("--json", options->json, "FILE", "write the result to FILE, or to stdout for -");
  add_flag_file(*command, "--cluster");
  command->footer(
      "Columns: good/s: requests a second within the goals; in SLO: their part of all; hit: prompt "
      "tokens found in caches; prefill: mean time that computes a prompt; moved GB: KV sent over "
      "links; $/M good: dollars for a million tokens within the goals\n"
      "Example: cachalot simulate --trace conversation_trace.jsonl.gz --prefill 8 --decode 8 "
      "--policy random,least_loaded,local,conductor --json -\n"
      "PD separated against colocated, over the request rate: cachalot simulate --trace "
      "conversation_trace.jsonl.gz --prefill 8 --decode 8 --colocated 16 --rate-scale 1,2,3,4 "
      "--ttft-slo-ms 10000 --tbt-slo-ms 100 --plot plots\n"
      "Map of the best policy: cachalot simulate --trace conversation_trace.jsonl.gz --prefill 10 "
      "--policy conductor,least_loaded+shared-pool --map rate-scale=1,2,3 --map link-gb-s=5,20,100 "
      "--plot plots\n"
      "Hosts that are peers: cachalot simulate --trace conversation_trace.jsonl.gz --prefill 16 "
      "--node-capacity-blocks 5000 --link-gb-s 12.5 --policy round_robin,round_robin+peers\n"
      "Money: cachalot simulate --trace conversation_trace.jsonl.gz --prefill 10 --shared-pool "
      "--policy least_loaded --network cxl --gpu-hour-usd 1.5");
  command->callback([command, options, &chosen] {
    chosen.run = [command, options] { return run({*command, *options}); };
  });
}

}  // namespace cachalot::apps
