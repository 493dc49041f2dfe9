#include "calibrate_runs.h"

#include <cinttypes>
#include <cstdio>
#include <memory>

#include "base/words.h"
#include "recorded_run.h"
#include "sim/run/link_fit.h"
#include "values.h"

namespace cachalot::apps {
namespace {

// Requests that failed are in no figure of the fit.
void warn_of_failed(const trace::RecordedRun& run, const std::string& file) {
  if (run.failed == 0) return;
  std::fprintf(stderr, "cachalot: warning: %s: %s left out\n", base::printable(file).c_str(),
               base::counted(run.failed, "failed request").c_str());
}

}  // namespace

void add_calibration_run_flags(Command& command, CalibrationRunFlags& flags) {
  const auto add = [&](const char* name, auto& value, const char* type, const char* text) {
    return command.add_option(name, value, text)->type_name(type);
  };
  add("--runs", flags.runs, "FILE…",
      "instead of --rows: recorded runs of one engine under different loads (results of vllm bench "
      "serve, SGLang's bench_serving, AIPerf's profile_export.jsonl, or vllm-run), each a point");
  add("--gpu", flags.gpu, "GPU", "of --runs");
  add("--model", flags.model, "NAME", "of --runs");
  add("--tensor-parallel", flags.tensor_parallel, "N", "of --runs: GPUs of the engine")
      ->transform(number(1, 1024))
      ->capture_default_str();
  add("--engine", flags.engine, "NAME", "of --runs, for the name of the fit")
      ->capture_default_str();
  add("--precision", flags.precision, "bf16|fp8", "of --runs")->capture_default_str();
  add("--run", flags.run, "FILE",
      "a recorded run of an engine of several GPUs: fits the link that they reduce over");
  add("--profile", flags.profile, "FOLDER", "with --run: measured operator times of the engine");
  add("--meta", flags.meta, "FILE", "with --run: the engine's options, as JSON");
}

Result<std::vector<sched::MeasuredGroup>> rows_of_runs(const CalibrationRunFlags& flags) {
  if (flags.gpu.empty() || flags.model.empty()) {
    return Error::make(Code::kInvalidArgument,
                       "--runs: expected --gpu GPU and --model NAME with it");
  }
  CACHALOT_TRY_ASSIGN(const sched::GpuSpec gpu, sched::find_gpu(flags.gpu));
  CACHALOT_TRY_ASSIGN(const sched::ServedModel model, sched::find_served_model(flags.model));
  CACHALOT_TRY_ASSIGN(const sched::Precision precision, sched::parse_precision(flags.precision));
  if (precision == sched::Precision::kFp8 && gpu.fp8_flops == 0) {
    return Error::make(Code::kInvalidArgument, "--precision: fp8, but %s has no fp8 operations",
                       gpu.name);
  }
  sched::MeasuredGroup group{{gpu.name, flags.engine, model.name, flags.precision}, {}};
  for (const std::string& file : flags.runs) {
    CACHALOT_TRY_ASSIGN(const trace::RecordedRun run, trace::read_recorded_run(file));
    const Result<sched::MeasuredRow> row =
        sim::row_of(run.requests, static_cast<double>(flags.tensor_parallel));
    if (!row) return Error::make(row.error().code, "%.100s: %s", file.c_str(), row.error().message);
    warn_of_failed(run, file);
    group.rows.push_back(*row);
  }
  return std::vector<sched::MeasuredGroup>{group};
}

Result<nlohmann::json> fit_link_of_run(const CalibrationRunFlags& flags, std::FILE* out) {
  if (flags.profile.empty() || flags.meta.empty()) {
    return Error::make(Code::kInvalidArgument,
                       "--run: expected --profile FOLDER and --meta FILE with it");
  }
  CACHALOT_TRY_ASSIGN(const trace::RecordedRun run, trace::read_recorded_run(flags.run));
  CACHALOT_TRY_ASSIGN(const trace::RunOptions recorded, trace::read_run_options(flags.meta));
  RecordedRunFlags reading;
  reading.profile = flags.profile;
  CACHALOT_TRY_ASSIGN(const ProfiledEngine engine, profiled_engine(reading, recorded));
  if (recorded.tensor_parallel < 2) {
    return Error::make(Code::kInvalidArgument,
                       "--run: tensor parallelism %" PRIu64
                       ", expected at least 2: one GPU has no "
                       "link to reduce over",
                       recorded.tensor_parallel);
  }
  warn_of_failed(run, flags.run);
  CACHALOT_TRY_ASSIGN(const sched::ProfileModel unfitted, engine.timing(engine.gpu));
  CACHALOT_TRY_ASSIGN(const sim::EngineOptions options, engine_of(recorded, unfitted));
  const auto timing = [&](const sim::Link& link) -> Result<std::unique_ptr<sched::TimingModel>> {
    sched::GpuSpec gpu = engine.gpu;
    gpu.link_bytes_per_second = link.bytes_per_second;
    gpu.link_latency_s = link.latency_s;
    CACHALOT_TRY_ASSIGN(sched::ProfileModel model, engine.timing(gpu));
    return std::unique_ptr<sched::TimingModel>(
        std::make_unique<sched::ProfileModel>(std::move(model)));
  };
  CACHALOT_TRY_ASSIGN(
      const sim::LinkFit fit,
      sim::fit_link(run, options, {engine.gpu.link_bytes_per_second, engine.gpu.link_latency_s},
                    timing));
  const sim::RunFigures figures = sim::figures_of(run.requests);
  const double tpot = sim::relative_error(fit.simulated.tpot_mean, figures.tpot_mean);
  const double ttft = sim::relative_error(fit.simulated.ttft_mean, figures.ttft_mean);
  const double gb_s = fit.link.bytes_per_second / 1e9, us = fit.link.latency_s * 1e6;
  std::fprintf(out, "%zu requests: --tp-link-gb-s %.4g --tp-link-us %.4g\n", run.requests.size(),
               gb_s, us);
  std::fprintf(out, "with it TPOT is %+.2f %% off, TTFT %+.2f %%\n", 100 * tpot, 100 * ttft);
  return nlohmann::json{{"requests", run.requests.size()},
                        {"tp_link_gb_s", gb_s},
                        {"tp_link_us", us},
                        {"tpot_mean_error", tpot},
                        {"ttft_mean_error", ttft}};
}

}  // namespace cachalot::apps
