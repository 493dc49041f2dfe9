// `cachalot vtensor`: what KV memory takes for the lengths of a trace, in vTensors and otherwise.

#include <unistd.h>

#include <algorithm>
#include <bit>
#include <chrono>
#include <cinttypes>
#include <memory>
#include <nlohmann/json.hpp>

#include "command.h"
#include "device_memory/address_book.h"
#include "device_memory/memfd/memfd_backend.h"
#include "device_memory/model/model_backend.h"
#include "geometry/model.h"
#include "model_flag.h"
#include "output.h"
#include "replay/allocation/kv_formula.h"
#include "replay/allocation/kv_slots.h"
#include "replay/allocation/paged_memory.h"
#include "replay/allocation/vtensor_memory.h"
#include "trace_flags.h"
#include "values.h"
#include "vtensor/range_layout.h"
#include "vtensor_output.h"

namespace cachalot::apps {
namespace {

using replay::KvTrack;
using vtensor::KvLayout;
using vtensor::KvShape;

struct Options {
  TraceFlags trace;
  std::string model = "Llama-3-8B";
  std::vector<std::string> layouts = {"per_layer", "folded"};
  std::string chunk_bytes = "2MiB";
  std::uint64_t max_tokens = 0;  // 0: the longest request
  std::uint64_t concurrency = 32;
  bool arrivals = false;
  double step_ms = 30;
  std::string sharing = "off";
  std::string capacity = "inf";
  std::string idle = "0";
  std::string backend = "model";
  std::string costs = "kvcached_bench";
  bool costs_given = false;
  std::uint64_t limit = 0;
  std::string json;
};

// The flags' values, checked.
struct Plan {
  KvShape shape;
  std::vector<KvLayout> layouts;
  std::uint64_t chunk_bytes = 0, max_tokens = 0;
  std::uint64_t capacity_chunks = 0, idle_chunks = 0;
  std::uint64_t block_tokens = 0;  // 0: nothing is shared
  const device_memory::CostTable* costs = nullptr;
};

Result<KvShape> shape_of(const std::string& model) {
  CACHALOT_TRY_ASSIGN(const geometry::Model parsed, geometry::parse_model(model));
  const std::uint64_t bytes = parsed.token.layer_token_bytes();
  if (parsed.token.attention == geometry::Attention::kLatent) {
    return KvShape{.layers = parsed.token.layers, .part_bytes = {bytes}};
  }
  return KvShape{.layers = parsed.token.layers, .part_bytes = {bytes / 2, bytes / 2}};
}

Result<const device_memory::CostTable*> costs_of(const std::string& name) {
  const device_memory::CostTable* const table = device_memory::find_cost_table(name);
  if (table != nullptr) return table;
  return Error::make(Code::kInvalidArgument, "--costs: \"%.60s\", expected one of: %s",
                     name.c_str(), device_memory::cost_table_names().c_str());
}

// A flag without effect is a usage error.
Status check_together(const Options& options) {
  if (options.costs_given && options.backend != "model") {
    return Error::make(Code::kInvalidArgument,
                       "--costs: --backend %s measures the time of calls, expected --backend model",
                       options.backend.c_str());
  }
  if (!options.trace.synthetic_prefix.empty() && options.sharing != "on") {
    return Error::make(Code::kInvalidArgument,
                       "--synthetic-prefix: has no effect without sharing, expected --sharing on");
  }
  return {};
}

// A size that cannot hold any request of a trace, or exceeds the address space, is a usage error.
Status check_fits(const Options& options, const Plan& plan, KvLayout layout) {
  const std::uint64_t most_range_bytes =
      device_memory::AddressBook::kMaxRangePlaces * device_memory::ModelOptions{}.granularity_bytes;
  const std::uint64_t tokens = std::max<std::uint64_t>(1, options.max_tokens);
  CACHALOT_TRY_ASSIGN(const vtensor::RangeLayout range,
                      vtensor::RangeLayout::make(plan.shape, layout, plan.chunk_bytes, tokens));
  if (plan.capacity_chunks < range.planes()) {
    return Error::make(Code::kInvalidArgument,
                       "--capacity: %.40s, expected at least %" PRIu64
                       " bytes: a chunk for each of the %" PRIu64 " planes of layout %s",
                       options.capacity.c_str(), range.planes() * plan.chunk_bytes, range.planes(),
                       vtensor::kv_layout_name(layout));
  }
  if (options.max_tokens != 0 && range.range_bytes() > most_range_bytes) {
    return Error::make(Code::kInvalidArgument,
                       "--max-tokens: %" PRIu64 " tokens take %" PRIu64
                       " bytes of addresses, expected at most %" PRIu64,
                       options.max_tokens, range.range_bytes(), most_range_bytes);
  }
  return {};
}

Result<Plan> plan_of(const Options& options) {
  CACHALOT_TRY(check_together(options));
  Plan plan;
  CACHALOT_TRY_ASSIGN(plan.shape, shape_of(options.model));
  CACHALOT_TRY_ASSIGN(const auto names, split_list("--layout", options.layouts));
  for (const std::string& name : names) {
    CACHALOT_TRY_ASSIGN(const KvLayout layout, vtensor::parse_kv_layout(name));
    plan.layouts.push_back(layout);
  }
  CACHALOT_TRY_ASSIGN(plan.chunk_bytes, parse_bytes("--chunk-bytes", options.chunk_bytes));
  if (plan.chunk_bytes == 0) {
    return Error::make(Code::kInvalidArgument, "--chunk-bytes: 0, expected a multiple of 2MiB");
  }
  plan.capacity_chunks = vtensor::LocalBudget::kNoLimit;
  if (options.capacity != "inf") {
    CACHALOT_TRY_ASSIGN(const std::uint64_t bytes, parse_bytes("--capacity", options.capacity));
    plan.capacity_chunks = bytes / plan.chunk_bytes;
  }
  CACHALOT_TRY_ASSIGN(const std::uint64_t idle, parse_bytes("--idle", options.idle));
  plan.idle_chunks = idle / plan.chunk_bytes;
  CACHALOT_TRY_ASSIGN(plan.costs, costs_of(options.costs));
  for (const KvLayout layout : plan.layouts) CACHALOT_TRY(check_fits(options, plan, layout));
  return plan;
}

// A memory of the trace, beside its arithmetic.
struct Subject {
  std::unique_ptr<device_memory::Backend> backend;
  std::unique_ptr<replay::KvMemory> memory;
  std::unique_ptr<replay::KvFormula> formula;
  VTensorRow row;
};

replay::KvUnits units_of(const Plan& plan, KvLayout layout) {
  replay::KvUnits units{.widths = {}, .unit_bytes = plan.chunk_bytes};
  if (layout == KvLayout::kFolded) {
    units.widths = {{.token_bytes = plan.shape.token_bytes(), .planes = 1}};
    return units;
  }
  const bool apart = layout == KvLayout::kPerLayer;
  for (const std::uint64_t bytes : plan.shape.part_bytes) {
    units.widths.push_back({.token_bytes = apart ? bytes : bytes * plan.shape.layers,
                            .planes = apart ? plan.shape.layers : 1});
  }
  return units;
}

Result<Subject> make_vtensor(const Plan& plan, const Options& options, KvLayout layout,
                             bool is_static) {
  Subject subject;
  const device_memory::ModelBackend* model = nullptr;
  // Static reservation is only counted: no machine has so much memory.
  if (options.backend == "memfd" && !is_static) {
    CACHALOT_TRY_ASSIGN(subject.backend, device_memory::MemfdBackend::open());
  } else {
    CACHALOT_TRY_ASSIGN(auto made, device_memory::ModelBackend::open({.costs = *plan.costs}));
    model = made.get();
    subject.backend = std::move(made);
  }
  replay::VTensorMemoryOptions how{
      .vtensor = {.shape = plan.shape,
                  .layout = layout,
                  .chunk_bytes = plan.chunk_bytes,
                  .max_tokens = plan.max_tokens,
                  .block_tokens = is_static ? 0 : plan.block_tokens,
                  .copy = model != nullptr ? [](device_memory::Address, device_memory::Address,
                                                std::uint64_t) { return Status(); }
                                           : vtensor::CopyBytes(vtensor::copy_by_processor),
                  .idle_chunks = plan.idle_chunks},
      .capacity_chunks = is_static ? vtensor::LocalBudget::kNoLimit : plan.capacity_chunks,
      .is_static = is_static};
  CACHALOT_TRY_ASSIGN(auto memory, replay::VTensorMemory::open(*subject.backend, model, how));
  subject.row = {.memory = is_static ? "static" : "vtensor",
                 .layout = vtensor::kv_layout_name(layout)};
  subject.row.vtensor = is_static ? nullptr : memory.get();
  subject.row.backend = subject.backend.get();
  subject.memory = std::move(memory);
  // What idle vTensors keep, and which prefixes go for want of space, no formula says.
  const bool is_known = is_static || (plan.idle_chunks == 0 &&
                                      plan.capacity_chunks == vtensor::LocalBudget::kNoLimit);
  if (!is_known) return subject;
  subject.formula = std::make_unique<replay::KvFormula>(
      replay::KvFormulaOptions{.units = units_of(plan, layout),
                               .ahead_tokens = 1,
                               .static_tokens = is_static ? plan.max_tokens : 0,
                               .block_tokens = is_static ? 0 : plan.block_tokens});
  return subject;
}

Result<Subject> make_paged(const Plan& plan, KvLayout layout) {
  Subject subject;
  const std::uint64_t page_bytes = replay::PagedMemory::kPageTokens * plan.shape.token_bytes();
  CACHALOT_TRY_ASSIGN(subject.backend,
                      device_memory::ModelBackend::open(
                          {.costs = *plan.costs,
                           .granularity_bytes = std::uint64_t{1} << std::countr_zero(page_bytes)}));
  subject.memory =
      std::make_unique<replay::PagedMemory>(*subject.backend, plan.shape.token_bytes());
  subject.formula = std::make_unique<replay::KvFormula>(replay::KvFormulaOptions{
      .units = {.widths = {{.token_bytes = plan.shape.token_bytes(), .planes = 1}},
                .unit_bytes = page_bytes}});
  subject.row = {.memory = "paged", .layout = vtensor::kv_layout_name(layout)};
  return subject;
}

Result<std::vector<Subject>> make_subjects(const Plan& plan, const Options& options) {
  std::vector<Subject> subjects;
  for (const KvLayout layout : plan.layouts) {
    CACHALOT_TRY_ASSIGN(Subject vtensor, make_vtensor(plan, options, layout, false));
    CACHALOT_TRY_ASSIGN(Subject whole, make_vtensor(plan, options, layout, true));
    CACHALOT_TRY_ASSIGN(Subject paged, make_paged(plan, layout));
    subjects.push_back(std::move(vtensor));
    subjects.push_back(std::move(whole));
    subjects.push_back(std::move(paged));
  }
  return subjects;
}

// A progress line on a terminal; nothing in a pipe.
void show_progress(std::uint64_t requests) {
  if (isatty(STDERR_FILENO) != 0) std::fprintf(stderr, "\r\033[K%" PRIu64 " requests", requests);
}
void clear_progress() {
  if (isatty(STDERR_FILENO) != 0) std::fputs("\r\033[K", stderr);
}

Result<VTensorResult> replay_trace(const Options& options, Plan& plan) {
  CACHALOT_TRY_ASSIGN(trace::RequestTrace trace, open_trace(options.trace, options.trace.file));
  const bool shares = options.sharing == "on";
  if (shares) CACHALOT_TRY(trace.require_ids());
  if (options.trace.block_tokens != 0 && !trace.has_ids()) {
    return Error::make(Code::kInvalidArgument,
                       "--block-tokens: %.120s has no blocks, expected a trace with block ids",
                       options.trace.file.c_str());
  }
  CACHALOT_TRY_ASSIGN(const replay::KvRequests requests,
                      replay::KvRequests::read(trace, shares, options.limit));
  if (shares) plan.block_tokens = trace.block_tokens();
  plan.max_tokens = options.max_tokens != 0 ? options.max_tokens : requests.longest_tokens();
  if (!requests.has_any_within(plan.max_tokens)) {
    const char* const file = options.trace.file.c_str();
    return plan.max_tokens == 0
               ? Error::make(Code::kBadInput, "%.120s: no request has a token", file)
               : Error::make(Code::kBadInput, "%.120s: no request has 1 to %" PRIu64 " tokens",
                             file, plan.max_tokens);
  }
  CACHALOT_TRY_ASSIGN(std::vector<Subject> subjects, make_subjects(plan, options));
  std::vector<KvTrack> tracks;
  for (const Subject& each : subjects) {
    tracks.push_back({.measured = each.memory.get(), .expected = each.formula.get()});
  }
  const auto begin = std::chrono::steady_clock::now();
  Result<replay::KvRun> run = replay::run_kv(
      requests, {.slots = options.arrivals ? 0 : options.concurrency, .step_ms = options.step_ms},
      plan.max_tokens, tracks, show_progress);
  clear_progress();
  if (!run) return run.error();
  const std::chrono::duration<double> wall = std::chrono::steady_clock::now() - begin;
  VTensorResult result{.run = *run,
                       .token_bytes = plan.shape.token_bytes(),
                       .max_tokens = plan.max_tokens,
                       .chunk_bytes = plan.chunk_bytes,
                       .block_tokens = trace.has_ids() ? trace.block_tokens() : 0,
                       .shares = shares,
                       .skipped_lines = trace.skipped_lines(),
                       .wall_s = wall.count()};
  for (std::size_t i = 0; i < subjects.size(); ++i) {
    subjects[i].row.take(tracks[i], subjects[i].formula.get());
    result.rows.push_back(subjects[i].row);
  }
  result.device = subjects.front().backend->description();
  return result;
}

Result<bool> show(const Options& options) {
  CACHALOT_TRY_ASSIGN(Plan plan, plan_of(options));
  CACHALOT_TRY(check_is_no_input("--json", options.json, {&options.trace.file, 1}));
  CACHALOT_TRY_ASSIGN(Output json, Output::open(options.json));
  CACHALOT_TRY_ASSIGN(const VTensorResult result, replay_trace(options, plan));
  print_table(human_output(options.json), result);
  CACHALOT_TRY(json.write_json(json_of(result)));
  return result.agrees();
}

int run(const Options& options) {
  const Result<bool> agrees = show(options);
  if (!agrees) return fail(agrees.error());
  if (*agrees) return kExitDone;
  return fail(
      Error::make(Code::kInternal, "vtensor: the measured memory differs from the formula"));
}

}  // namespace

void add_vtensor(Command& app, Chosen& chosen) {
  auto options = std::make_shared<Options>();
  Command* const command = app.add_subcommand(
      "vtensor", "device memory for the KV of a trace's requests: vTensors, static slots, paging");
  const auto add = [&](const char* name, auto& value, const std::string& type,
                       const std::string& text) {
    return command->add_option(name, value, text)->type_name(type);
  };
  add_trace_file_flag(*command, options->trace);
  add_model_flag(*command, options->model, LayersOf::kModel, "model of the KV, one rank")
      ->capture_default_str();
  add("--layout", options->layouts, "per_layer|folded|folded_parts,…",
      "per_layer (a plane for each layer and part), folded (one plane), folded_parts (keys and "
      "values apart)")
      ->capture_default_str();
  add("--chunk-bytes", options->chunk_bytes, "SIZE", "unit of mapping, a multiple of 2MiB")
      ->capture_default_str();
  add("--max-tokens", options->max_tokens, "N",
      "skip and count longer requests (default: the longest of the trace)")
      ->transform(number(1, std::uint64_t{1} << 32));
  Flag* const concurrency =
      add("--concurrency", options->concurrency, "N", "decode slots, never idle")
          ->transform(number(1, 65536))
          ->capture_default_str();
  command
      ->add_flag("--arrivals", options->arrivals,
                 "instead: requests start at their arrival times, without a limit of slots")
      ->excludes(concurrency);
  add("--step-ms", options->step_ms, "MS", "duration of a decode step of all running requests")
      ->check(decimal(0.001, 60000))
      ->capture_default_str();
  add("--sharing", options->sharing, "on|off",
      "share chunks of equal prefixes, by the trace's block ids")
      ->check(one_of({"on", "off"}))
      ->capture_default_str();
  add("--capacity", options->capacity, "SIZE",
      "memory of the device, or inf; if memory is short, idle vTensors and old prefixes are freed")
      ->capture_default_str();
  add("--idle", options->idle, "SIZE", "memory that vTensors of ended requests may keep mapped")
      ->capture_default_str();
  add("--backend", options->backend, "model|memfd",
      "model: no memory, published costs of GPU drivers; memfd: this machine's memory")
      ->check(one_of({"model", "memfd"}))
      ->capture_default_str();
  Flag* const costs = add("--costs", options->costs, device_memory::cost_table_names("|"),
                          "model: published costs of driver calls")
                          ->capture_default_str();
  add("--limit", options->limit, "N", "only the first N requests (default: all)")
      ->transform(number(1, std::uint64_t{1} << 32));
  add_block_tokens_flag(*command, options->trace);
  add_trace_reading_flags(*command, options->trace);
  add("--json", options->json, "FILE", "write the result to FILE, or to stdout for -");
  command->footer(
      "Example: cachalot vtensor --trace azure2023_conv.csv.gz --model DeepSeek-V3 "
      "--concurrency 64 --json -");
  command->callback([options, costs, &chosen] {
    options->costs_given = costs->count() != 0;
    chosen.run = [options] { return run(*options); };
  });
}

}  // namespace cachalot::apps
