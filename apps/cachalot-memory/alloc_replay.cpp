// `cachalot alloc-replay`: an allocation trace on allocators of device memory.

#include <unistd.h>

#include <algorithm>
#include <cinttypes>
#include <cmath>
#include <memory>
#include <nlohmann/json.hpp>

#include "alloc_replay_output.h"
#include "command.h"
#include "device_memory/baseline/caching_allocator.h"
#include "device_memory/baseline/expandable_allocator.h"
#include "device_memory/cuda/cuda_backend.h"
#include "device_memory/memfd/memfd_backend.h"
#include "device_memory/model/model_backend.h"
#include "gpu/stream_events.h"
#include "gpu_patterns.h"
#include "os/memory.h"
#include "output.h"
#include "plot.h"
#include "plot_allocations.h"
#include "stitch/stitch_allocator.h"
#include "values.h"

namespace cachalot::apps {
namespace {

constexpr const char* kAllocators[] = {"caching", "expandable", "stitch"};

struct Options {
  std::string trace;
  std::vector<std::string> allocators = {"stitch"};
  std::string backend = "model";
  std::string frag_limit, stitched_limit, limit;
  std::string scale = "1";
  std::string verify;
  std::string costs;
  std::string tmpfs;
  std::string plot, json;
};

// What the words on the command line mean.
struct Settings {
  std::vector<std::string> allocators;
  stitch::StitchOptions stitch;
  std::uint64_t limit_bytes = 0;
  double scale = 1;
  std::uint64_t peak_bytes =
      0;  // what it is to make of the peak of the live bytes; 0: it was given
  replay::Verify verify = replay::Verify::kOff;
  device_memory::CostTable costs;
};

Result<std::vector<std::string>> parse_allocators(const std::vector<std::string>& texts) {
  CACHALOT_TRY_ASSIGN(std::vector<std::string> names, split_list("--allocator", texts));
  if (std::find(names.begin(), names.end(), "all") != names.end()) {
    CACHALOT_TRY(check_all_is_alone("--allocator", names));
    return std::vector<std::string>(std::begin(kAllocators), std::end(kAllocators));
  }
  for (const std::string& name : names) {
    if (std::find(std::begin(kAllocators), std::end(kAllocators), name) != std::end(kAllocators))
      continue;
    return Error::make(Code::kInvalidArgument,
                       "--allocator: \"%.60s\", expected caching, expandable, stitch or all",
                       name.c_str());
  }
  return names;
}

Result<replay::Verify> parse_verify(const std::string& text, const std::string& backend) {
  const bool has_bytes = backend != "model";
  if (text.empty()) return has_bytes ? replay::Verify::kFull : replay::Verify::kOff;
  if (text == "off") return replay::Verify::kOff;
  if (text != "sample" && text != "full") {
    return Error::make(Code::kInvalidArgument, "--verify: \"%.60s\", expected off, sample or full",
                       text.c_str());
  }
  if (!has_bytes) {
    return Error::make(Code::kInvalidArgument,
                       "--verify %s: the model has no memory, expected --backend memfd or cuda",
                       text.c_str());
  }
  return text == "full" ? replay::Verify::kFull : replay::Verify::kSample;
}

// A factor, or the size that the peak of the live bytes is to have.
Status parse_scale(const std::string& text, Settings& settings) {
  if (text.find_first_not_of("0123456789.") == std::string::npos) {
    char* end = nullptr;
    settings.scale = std::strtod(text.c_str(), &end);
    if (*end == '\0' && settings.scale > 0 && std::isfinite(settings.scale)) return {};
    return Error::make(Code::kInvalidArgument,
                       "--scale: \"%.60s\", expected a factor above 0, or a size", text.c_str());
  }
  CACHALOT_TRY_ASSIGN(settings.peak_bytes, parse_bytes("--scale", text));
  if (settings.peak_bytes != 0) return {};
  return Error::make(Code::kInvalidArgument, "--scale: 0 bytes, expected some");
}

// Reads the trace once: it may be a pipe.
Result<replay::AllocEvents> read_events(const std::string& trace, Settings& settings) {
  CACHALOT_TRY_ASSIGN(replay::AllocEvents events, replay::AllocEvents::read(trace));
  if (settings.peak_bytes != 0) {
    settings.scale = static_cast<double>(settings.peak_bytes) /
                     static_cast<double>(std::max<std::uint64_t>(1, events.peak_live_bytes()));
  }
  CACHALOT_TRY(events.scale(settings.scale));
  return events;
}

Result<std::uint64_t> parse_optional_bytes(const char* flag, const std::string& text,
                                           std::uint64_t otherwise) {
  if (text.empty()) return otherwise;
  return parse_bytes(flag, text);
}

Status check_applies(const char* flag, const std::string& value, bool applies, const char* to) {
  if (value.empty() || applies) return {};
  return Error::make(Code::kInvalidArgument, "%s %.60s: applies to %s only", flag, value.c_str(),
                     to);
}

// What would be ignored was meant for something else.
Status check_all_apply(const Options& options, const std::vector<std::string>& allocators) {
  const bool has_stitch =
      std::find(allocators.begin(), allocators.end(), "stitch") != allocators.end();
  CACHALOT_TRY(check_applies("--frag-limit", options.frag_limit, has_stitch, "--allocator stitch"));
  CACHALOT_TRY(
      check_applies("--stitched-limit", options.stitched_limit, has_stitch, "--allocator stitch"));
  CACHALOT_TRY(
      check_applies("--costs", options.costs, options.backend == "model", "--backend model"));
  return check_applies("--tmpfs", options.tmpfs, options.backend == "memfd", "--backend memfd");
}

Result<Settings> settings_of(const Options& options) {
  Settings settings;
  CACHALOT_TRY_ASSIGN(settings.allocators, parse_allocators(options.allocators));
  if (options.backend != "model" && options.backend != "memfd" && options.backend != "cuda") {
    return Error::make(Code::kInvalidArgument,
                       "--backend: \"%.60s\", expected model, memfd or cuda",
                       options.backend.c_str());
  }
  CACHALOT_TRY(check_all_apply(options, settings.allocators));
  CACHALOT_TRY_ASSIGN(settings.verify, parse_verify(options.verify, options.backend));
  const stitch::StitchOptions defaults;
  CACHALOT_TRY_ASSIGN(
      settings.stitch.frag_limit_bytes,
      parse_optional_bytes("--frag-limit", options.frag_limit, defaults.frag_limit_bytes));
  CACHALOT_TRY_ASSIGN(settings.stitch.stitched_limit_bytes,
                      parse_optional_bytes("--stitched-limit", options.stitched_limit,
                                           defaults.stitched_limit_bytes));
  CACHALOT_TRY_ASSIGN(settings.limit_bytes, parse_optional_bytes("--limit", options.limit, 0));
  if (!options.limit.empty() && settings.limit_bytes == 0) {
    return Error::make(Code::kInvalidArgument, "--limit: 0 bytes, expected some");
  }
  const device_memory::CostTable* const costs = options.costs.empty()
                                                    ? &device_memory::cost_tables().front()
                                                    : device_memory::find_cost_table(options.costs);
  if (costs == nullptr) {
    return Error::make(Code::kInvalidArgument, "--costs: \"%.60s\", expected one of: %s",
                       options.costs.c_str(), device_memory::cost_table_names().c_str());
  }
  settings.costs = *costs;
  CACHALOT_TRY(parse_scale(options.scale, settings));
  return settings;
}

Result<std::unique_ptr<device_memory::Backend>> open_backend(const Options& options,
                                                             const Settings& settings) {
  std::unique_ptr<device_memory::Backend> backend;
  if (options.backend == "model") {
    CACHALOT_TRY_ASSIGN(backend, device_memory::ModelBackend::open({.costs = settings.costs}));
  } else if (options.backend == "memfd") {
    CACHALOT_TRY_ASSIGN(backend,
                        device_memory::MemfdBackend::open({.tmpfs_directory = options.tmpfs}));
  } else {
    CACHALOT_TRY_ASSIGN(backend, device_memory::CudaBackend::open());
  }
  backend->set_limit_bytes(settings.limit_bytes);
  return backend;
}

Result<std::unique_ptr<device_memory::Allocator>> make_allocator(const std::string& name,
                                                                 device_memory::Backend& backend,
                                                                 gpu::StreamEvents& events,
                                                                 const Settings& settings) {
  if (name == "caching") {
    return std::unique_ptr<device_memory::Allocator>(
        new device_memory::CachingAllocator(backend, events));
  }
  if (name == "expandable") {
    return std::unique_ptr<device_memory::Allocator>(
        new device_memory::ExpandableAllocator(backend, events));
  }
  CACHALOT_TRY_ASSIGN(std::unique_ptr<device_memory::Allocator> stitch,
                      stitch::StitchAllocator::create(backend, events, settings.stitch));
  return stitch;
}

Result<AllocRow> replay_on(const std::string& name, const replay::AllocEvents& events,
                           const Options& options, const Settings& settings) {
  CACHALOT_TRY_ASSIGN(const std::unique_ptr<device_memory::Backend> backend,
                      open_backend(options, settings));
  gpu::ImmediateEvents streams;
  CACHALOT_TRY_ASSIGN(const std::unique_ptr<device_memory::Allocator> allocator,
                      make_allocator(name, *backend, streams, settings));
  std::unique_ptr<GpuPatterns> gpu;
  if (options.backend == "cuda" && settings.verify != replay::Verify::kOff) {
    CACHALOT_TRY_ASSIGN(gpu, GpuPatterns::open());
  }
  replay::AllocReplayOptions how{.verify = settings.verify,
                                 .memory = gpu.get(),
                                 .progress = {},
                                 .timeline_samples = options.plot.empty() ? 0 : kMostPlotSamples};
  if (isatty(STDERR_FILENO) != 0) {
    how.progress = [&](std::uint64_t done) {
      std::fprintf(stderr, "\r\033[K%s: %" PRIu64 " of %zu events", name.c_str(), done,
                   events.events().size());
    };
  }
  Result<replay::AllocReport> report =
      replay::replay_allocations(events, *allocator, *backend, how);
  if (how.progress) std::fputs("\r\033[K", stderr);
  if (!report) return report.error();
  CACHALOT_TRY(allocator->check());
  AllocRow row{.allocator = name,
               .report = *std::move(report),
               .states = {},
               .charged_ms = {},
               .memory = std::string(backend->name()) + ": " + backend->description(),
               .scale = settings.scale,
               .verify = settings.verify};
  if (const auto* stitch = dynamic_cast<const stitch::StitchAllocator*>(allocator.get())) {
    row.states = stitch->states();
  }
  if (const auto* model = dynamic_cast<const device_memory::ModelBackend*>(backend.get())) {
    row.charged_ms = static_cast<double>(model->charged_ns()) * 1e-6;
  }
  return row;
}

// A replay must not use up the machine's last memory.
Status check_memory(const Options& options, const Settings& settings,
                    const replay::AllocEvents& events) {
  if (options.backend != "memfd" || settings.limit_bytes != 0) return {};
  const os::AvailableMemory available = os::available_memory();
  if (events.peak_live_bytes() <= available.bytes / 10 * 9) return {};
  return Error::make(
      Code::kNoSpace,
      "%.80s: %" PRIu64 " bytes at its peak, expected at most nine tenths of the %" PRIu64
      " available (%s): --scale reduces the sizes, --limit refuses requests beyond it",
      options.trace.c_str(), events.peak_live_bytes(), available.bytes,
      available.limited_by.c_str());
}

Status check_bytes(const std::vector<AllocRow>& rows) {
  for (const AllocRow& row : rows) {
    if (row.report.wrong_blocks == 0) continue;
    return Error::make(Code::kCorrupt,
                       "%s: %" PRIu64 " of %" PRIu64 " blocks had other bytes when they were freed",
                       row.allocator.c_str(), row.report.wrong_blocks, row.report.checked_blocks);
  }
  return {};
}

std::string plot_of(const Options& options, const replay::AllocEvents& events,
                    const std::vector<AllocRow>& rows) {
  std::vector<AllocLine> lines;
  for (const AllocRow& row : rows) lines.push_back({row.allocator, row.report.timeline});
  return plot_allocations(
      lines, {.title = "Memory of " + name_in_title(options.trace),
              .subtitle = std::to_string(events.events().size()) + " events; at most " +
                          bytes_text(events.peak_live_bytes()) + " active at a time; " +
                          rows.front().memory});
}

Status alloc_replay(const Options& options) {
  CACHALOT_TRY(check_is_no_input("--json", options.json, {&options.trace, 1}));
  CACHALOT_TRY(check_is_no_input("--plot", options.plot, {&options.trace, 1}));
  CACHALOT_TRY(check_plot_file(options.plot));
  CACHALOT_TRY(check_are_apart({{"--plot", options.plot}, {"--json", options.json}}));
  CACHALOT_TRY_ASSIGN(Output plot, Output::open(options.plot));
  CACHALOT_TRY_ASSIGN(Output output, Output::open(options.json));
  CACHALOT_TRY_ASSIGN(Settings settings, settings_of(options));
  CACHALOT_TRY_ASSIGN(const replay::AllocEvents events, read_events(options.trace, settings));
  CACHALOT_TRY(check_memory(options, settings, events));
  std::vector<AllocRow> rows;
  for (const std::string& name : settings.allocators) {
    CACHALOT_TRY_ASSIGN(AllocRow row, replay_on(name, events, options, settings));
    rows.push_back(std::move(row));
  }
  print_table(human_output(options.plot == "-" ? options.plot : options.json), rows);
  CACHALOT_TRY(plot.write(plot_of(options, events, rows)));
  if (rows.size() == 1) {
    CACHALOT_TRY(output.write_json(json_of(rows[0])));
  } else {
    nlohmann::json json = nlohmann::json::array();
    for (const AllocRow& row : rows) json.push_back(json_of(row));
    CACHALOT_TRY(output.write_json({{"rows", std::move(json)}}));
  }
  return check_bytes(rows);
}

int run(const Options& options) {
  const Status status = alloc_replay(options);
  return status ? kExitDone : fail(status.error());
}

}  // namespace

void add_alloc_replay(Command& app, Chosen& chosen) {
  auto options = std::make_shared<Options>();
  Command* const command = app.add_subcommand(
      "alloc-replay", "replays an allocation trace on allocators of device memory");
  const auto add = [&](const char* name, auto& value, const std::string& type,
                       const std::string& text) {
    return command->add_option(name, value, text)->type_name(type);
  };
  add("--trace", options->trace, "FILE",
      "allocation trace, plain or gzip: a ID BYTES / f ID / m TEXT")
      ->required();
  add("--allocator", options->allocators, "caching|expandable|stitch|all,…",
      "caching: a model of PyTorch's; expandable: of PyTorch's expandable segments; stitch: this "
      "library's; all")
      ->capture_default_str();
  add("--backend", options->backend, "model|memfd|cuda",
      "model: no memory, calls are counted at published costs; memfd: this machine's memory; cuda: "
      "a GPU's")
      ->capture_default_str();
  add("--frag-limit", options->frag_limit, "SIZE",
      "stitch: smaller requests are stitched only when memory is out (default: 2MiB)");
  add("--stitched-limit", options->stitched_limit, "SIZE",
      "stitch: addresses of kept stitched blocks (default: 8 x the bytes held, at least 256GiB)");
  add("--limit", options->limit, "SIZE",
      "memory of the device; requests beyond it are refused and counted");
  add("--scale", options->scale, "X|SIZE",
      "multiplies all sizes by a factor X, or so that the live bytes peak at SIZE")
      ->capture_default_str();
  add("--verify", options->verify, "full|sample|off",
      "memfd, cuda: fills each block with a pattern and checks it when freed: full (default), "
      "sample (a word per 4 KiB), off");
  add("--costs", options->costs, device_memory::cost_table_names("|"),
      "model: published costs of driver calls (default: " +
          std::string(device_memory::cost_tables().front().name) + ")");
  add("--tmpfs", options->tmpfs, "FOLDER", "memfd: a tmpfs mounted with huge pages");
  add("--plot", options->plot, "FILE.svg",
      "draw reserved and active memory over time, a line per allocator, to FILE.svg, or to stdout "
      "for -");
  add("--json", options->json, "FILE",
      "write the figures to FILE, or to stdout for -; of several allocators as \"rows\"");
  command->footer(
      "Example: cachalot alloc-replay --trace finetune.trace.gz --allocator all\n"
      "         cachalot alloc-replay --trace finetune.trace.gz --backend memfd --scale 4GiB "
      "--verify sample");
  command->callback([options, &chosen] { chosen.run = [options] { return run(*options); }; });
}

}  // namespace cachalot::apps
