#include "timing_source.h"

#include <algorithm>

#include "sched/calibration/fitted_file.h"
#include "sched/calibration/profile_folder.h"
#include "sched/timing/formula_model.h"
#include "sched/timing/kv_capacity.h"
#include "sched/timing/profile_model.h"
#include "sched/timing/timing_preset.h"
#include "values.h"

namespace cachalot::apps {
namespace {

// Prefill as measured, without what an engine adds to a step: the correction has that. Decode is an estimate.
Result<Timing> by_formula(const TimingFlags& flags, const sched::TimingPreset& preset) {
  sched::FormulaParameters p = preset.formula;
  p.step_overhead_s = 0;
  Timing timing;
  CACHALOT_TRY_ASSIGN(sched::FormulaModel prefill, sched::FormulaModel::make(p));
  p.step_overhead_s = preset.formula.step_overhead_s;
  if (flags.decode_overhead_ms >= 0) p.step_overhead_s = flags.decode_overhead_ms / 1000;
  if (flags.decode_memory_gb_s > 0) p.memory_bytes_per_second = flags.decode_memory_gb_s * 1e9;
  CACHALOT_TRY_ASSIGN(sched::FormulaModel decode, sched::FormulaModel::make(p));
  timing.prefill = std::make_shared<sched::FormulaModel>(prefill);
  timing.decode = std::make_shared<sched::FormulaModel>(decode);
  timing.source = std::string(preset.is_estimate ? "prefill is an estimate: " : "prefill: ") +
                  preset.source + "; decode is an estimate";
  return timing;
}

Result<Timing> by_fit(const TimingFlags& flags, const sched::TimingPreset& preset) {
  CACHALOT_TRY_ASSIGN(const auto entries, sched::read_fitted_file(flags.calibration));
  CACHALOT_TRY_ASSIGN(const sched::Precision precision, sched::parse_precision(flags.precision));
  std::string names;
  for (const sched::FittedEntry& entry : entries) {
    names += (names.empty() ? "" : "; ") + entry.subject.text();
    CACHALOT_TRY_ASSIGN(const sched::GpuSpec gpu, sched::find_gpu(entry.subject.gpu));
    CACHALOT_TRY_ASSIGN(const sched::ServedModel model,
                        sched::find_served_model(entry.subject.model));
    if (std::string_view(gpu.name) != preset.gpu.name ||
        std::string_view(model.name) != preset.model.name ||
        entry.subject.precision != flags.precision) {
      continue;
    }
    CACHALOT_TRY_ASSIGN(sched::FittedModel fitted,
                        sched::FittedModel::make(entry.values, gpu, model, precision, preset.gpus));
    Timing timing;
    timing.prefill = timing.decode = std::make_shared<sched::FittedModel>(std::move(fitted));
    timing.source = "fitted to measured rows of " + entry.subject.text();
    return timing;
  }
  return Error::make(Code::kInvalidArgument,
                     "--calibration: no model fitted for %s, %s, %s; expected one of: %s",
                     preset.gpu.name, preset.model.name, flags.precision.c_str(),
                     names.empty() ? "none is there" : names.c_str());
}

Result<Timing> by_profile(const RecordedRunFlags& profile, const sched::ProfileTables& tables,
                          const sched::TimingPreset& preset, std::uint64_t step_tokens) {
  const sched::GpuSpec gpu = with_link(preset.gpu, profile);
  CACHALOT_TRY_ASSIGN(
      sched::ProfileModel model,
      sched::ProfileModel::make(tables, preset.model, gpu, {.chunk_tokens = step_tokens}));
  Timing timing;
  timing.prefill = timing.decode = std::make_shared<sched::ProfileModel>(std::move(model));
  timing.source = "operator times measured on " + std::string(gpu.name);
  if (tables.tensor_parallel > 1 && gpu.link_is_estimate) {
    timing.source += "; the all-reduce is an estimate";
  }
  return timing;
}

}  // namespace

void add_timing_flags(Command& command, TimingFlags& flags) {
  const auto add = [&](const char* name, auto& value, const char* type, const std::string& text) {
    return command.add_option(name, value, text)->type_name(type);
  };
  add("--model", flags.model, "NAME",
      "the model that is served: any dense one of those that hitrate --help names")
      ->default_str(kDefaultModel);
  add("--hardware", flags.hardware, "[Nx]GPU", "the GPUs of an instance, of " + sched::gpu_names())
      ->default_str(kDefaultHardware);
  add("--calibration", flags.calibration, "FILE",
      "times from a fitted model of this file (cachalot calibrate --out) instead of the formula");
  add("--precision", flags.precision, "bf16|fp8", "which of its models")->capture_default_str();
  add("--decode-memory-gb-s", flags.decode_memory_gb_s, "X",
      "memory bandwidth that a decode instance reaches (default: 60 % of the data sheet, an "
      "estimate)")
      ->transform(decimal(1e-3, 1e9));
  add("--decode-overhead-ms", flags.decode_overhead_ms, "X",
      "of each decode step, beside reading weights and KV (default: 8, an estimate)")
      ->transform(decimal(0, 1e6));
}

Result<Timing> timing_of(const TimingFlags& flags, const RecordedRunFlags& profile,
                         std::uint64_t step_tokens) {
  if (!flags.calibration.empty() && !profile.profile.empty()) {
    return Error::make(Code::kInvalidArgument,
                       "--calibration: given with --profile, expected one source of times");
  }
  std::string model = flags.model, hardware = flags.hardware;
  sched::ProfileTables tables;
  if (!profile.profile.empty()) {
    CACHALOT_TRY_ASSIGN(tables, sched::read_profile_folder(profile.profile));
    if (model.empty()) model = tables.model;
    if (hardware.empty()) {
      hardware = std::to_string(tables.tensor_parallel) + "x" + tables.hardware;
    }
  }
  if (model.empty()) model = kDefaultModel;
  if (hardware.empty()) hardware = kDefaultHardware;
  CACHALOT_TRY_ASSIGN(const sched::TimingPreset preset, sched::find_timing_preset(model, hardware));
  Timing timing;
  double bytes_per_weight = 2;
  if (!profile.profile.empty()) {
    CACHALOT_TRY_ASSIGN(const sched::ServedModel profiled, sched::find_served_model(tables.model));
    CACHALOT_TRY_ASSIGN(const sched::GpuSpec gpu, sched::find_gpu(tables.hardware));
    if (std::string_view(profiled.name) != preset.model.name ||
        std::string_view(gpu.name) != preset.gpu.name ||
        static_cast<double>(tables.tensor_parallel) != preset.gpus) {
      return Error::make(Code::kInvalidArgument,
                         "--profile: it is of %s on %llux%s, but %s on %s "
                         "was asked for",
                         profiled.name, static_cast<unsigned long long>(tables.tensor_parallel),
                         gpu.name, model.c_str(), hardware.c_str());
    }
    CACHALOT_TRY_ASSIGN(timing, by_profile(profile, tables, preset, step_tokens));
  } else if (!flags.calibration.empty()) {
    CACHALOT_TRY_ASSIGN(timing, by_fit(flags, preset));
    if (flags.precision == "fp8") bytes_per_weight = 1;
  } else {
    CACHALOT_TRY_ASSIGN(timing, by_formula(flags, preset));
  }
  timing.kv_bytes_per_token = preset.formula.kv_bytes_per_token;
  CACHALOT_TRY_ASSIGN(timing.decode_capacity_tokens,
                      sched::estimate_kv_blocks(preset.gpu, preset.model,
                                                {.tensor_parallel = preset.gpus,
                                                 .bytes_per_weight = bytes_per_weight,
                                                 .block_tokens = 1}));
  timing.model = preset.model.name;
  timing.hardware = hardware;
  timing.layers = preset.model.layers;
  timing.gpus = preset.gpus;
  timing.host_bytes_per_s = preset.gpus * preset.gpu.host_bytes_per_second;
  return timing;
}

}  // namespace cachalot::apps
