// `cachalot calibrate`: timing models from measured TTFT and TPOT, and how well they predict others.
#include <memory>
#include <nlohmann/json.hpp>

#include "calibrate_runs.h"
#include "command.h"
#include "output.h"
#include "sched/calibration/fitted_file.h"

namespace cachalot::apps {
namespace {

struct Options {
  std::string rows, out;
  std::string check, models;
  CalibrationRunFlags recorded;
  std::string json;

  bool fits() const { return !rows.empty() || !recorded.runs.empty(); }
};

Status check_flags(const Options& options) {
  const bool fits = options.fits(), checks = !options.check.empty();
  const bool fits_link = !options.recorded.run.empty();
  if ((options.rows.empty() ? 0 : 1) + (options.recorded.runs.empty() ? 0 : 1) + (checks ? 1 : 0) +
          (fits_link ? 1 : 0) !=
      1) {
    return Error::make(Code::kInvalidArgument,
                       "calibrate: expected either --rows with --out, or --check with --models, or "
                       "--runs with --out, or --run with --profile and --meta");
  }
  if (fits_link && !(options.out.empty() && options.models.empty())) {
    return Error::make(Code::kInvalidArgument,
                       "--run: expected neither --out nor --models with it");
  }
  if (fits && (options.out.empty() || !options.models.empty())) {
    return Error::make(Code::kInvalidArgument, "%s: expected --out FILE with it%s",
                       options.rows.empty() ? "--runs" : "--rows",
                       options.models.empty() ? "" : ", and no --models");
  }
  if (checks && (options.models.empty() || !options.out.empty())) {
    return Error::make(Code::kInvalidArgument, "--check: expected --models FILE with it%s",
                       options.out.empty() ? "" : ", and no --out");
  }
  std::vector<std::string> inputs = options.recorded.runs;
  inputs.insert(inputs.end(), {options.rows, options.check, options.models, options.recorded.run,
                               options.recorded.meta});
  CACHALOT_TRY(check_is_no_input("--out", options.out, inputs));
  CACHALOT_TRY(check_is_no_input("--json", options.json, inputs));
  return check_are_apart({{"--out", options.out}, {"--json", options.json}});
}

void print_row(std::FILE* out, const std::string& name, const sched::FitErrors& errors) {
  std::fprintf(out, "%-52s %5zu %9.1f %% %9.1f %% %9.1f %% %9.1f %%\n", name.c_str(), errors.rows,
               100 * errors.ttft_median, 100 * errors.tpot_median, 100 * errors.ttft_p90,
               100 * errors.tpot_p90);
}

void print(std::FILE* out, const sched::FitReport& report, bool own_rows) {
  std::fprintf(out, "errors on %s rows, of concurrency 8 and more:\n",
               own_rows ? "the fit's own" : "these");
  std::fprintf(out, "%-52s %5s %11s %11s %11s %11s\n", "", "rows", "TTFT median", "TPOT median",
               "TTFT p90", "TPOT p90");
  for (const sched::FitErrors& group : report.groups) print_row(out, group.subject.text(), group);
  print_row(out, "all", report.all);
}

nlohmann::json subject_json(const sched::FitSubject& subject) {
  return {{"gpu", subject.gpu},
          {"engine", subject.engine},
          {"model", subject.model},
          {"precision", subject.precision}};
}

nlohmann::json errors_json(const sched::FitErrors& errors) {
  return {{"rows", errors.rows},
          {"ttft_median_error", errors.ttft_median},
          {"tpot_median_error", errors.tpot_median},
          {"ttft_p90_error", errors.ttft_p90},
          {"tpot_p90_error", errors.tpot_p90}};
}

nlohmann::json json_of(const sched::FitReport& report) {
  nlohmann::json json = errors_json(report.all);
  json["groups"] = nlohmann::json::array();
  for (const sched::FitErrors& group : report.groups) {
    nlohmann::json row = subject_json(group.subject);
    row.update(errors_json(group));
    json["groups"].push_back(std::move(row));
  }
  return json;
}

nlohmann::json models_json(const std::vector<sched::FittedEntry>& entries,
                           const sched::FitReport& report) {
  nlohmann::json models = nlohmann::json::array();
  for (std::size_t i = 0; i < entries.size(); ++i) {
    nlohmann::json model = subject_json(entries[i].subject);
    for (std::size_t k = 0; k < sched::kFitCoefficients; ++k)
      model["coefficients"][sched::fit_coefficients()[k].name] = entries[i].values[k];
    model["fit"] = errors_json(report.groups[i]);
    models.push_back(std::move(model));
  }
  return {{"models", models}};
}

Status calibrate(const Options& options) {
  CACHALOT_TRY(check_flags(options));
  CACHALOT_TRY_ASSIGN(Output out, Output::open(options.out));
  CACHALOT_TRY_ASSIGN(Output json, Output::open(options.json));
  if (!options.recorded.run.empty()) {
    CACHALOT_TRY_ASSIGN(const nlohmann::json link,
                        fit_link_of_run(options.recorded, human_output(options.json)));
    return json.write_json(link);
  }
  const bool fits = options.fits();
  CACHALOT_TRY_ASSIGN(const std::vector<sched::MeasuredGroup> groups,
                      options.recorded.runs.empty()
                          ? sched::read_measured_rows(fits ? options.rows : options.check)
                          : rows_of_runs(options.recorded));
  std::vector<sched::FittedEntry> models;
  if (fits) {
    models = sched::fit_groups(groups);
  } else {
    CACHALOT_TRY_ASSIGN(models, sched::read_fitted_file(options.models));
  }
  CACHALOT_TRY_ASSIGN(const sched::FitReport report, sched::check_groups(groups, models));
  print(options.out == "-" ? stderr : human_output(options.json), report, fits);
  if (fits) CACHALOT_TRY(out.write_json(models_json(models, report)));
  return json.write_json(json_of(report));
}

int run(const Options& options) {
  const Status status = calibrate(options);
  return status ? kExitDone : fail(status.error());
}

}  // namespace

void add_calibrate(Command& app, Chosen& chosen) {
  auto options = std::make_shared<Options>();
  Command* const command =
      app.add_subcommand("calibrate", "timing models from measured TTFT and TPOT");
  const auto add = [&](const char* name, std::string& value, const std::string& text) {
    command->add_option(name, value, text)->type_name("FILE");
  };
  add("--rows", options->rows,
      "CSV of measured points: gpu,engine,engine_version,model,precision,tp,isl,osl,concurrency,"
      "ttft_ms,tpot_ms; one model is fitted for each gpu, engine, model and precision");
  add("--out", options->out, "write the fitted models as JSON to FILE, or to stdout for -");
  add("--check", options->check, "CSV of other points of the same kind: how far off --models is");
  add("--models", options->models, "the fitted models to check");
  add_calibration_run_flags(*command, options->recorded);
  add("--json", options->json, "write the errors to FILE, or to stdout for -");
  command->footer(
      "Example: cachalot calibrate --rows measured.csv --out models.json\n"
      "         cachalot calibrate --runs load1.json load2.json --gpu H100_SXM --model Qwen3-32B "
      "--out "
      "models.json\n"
      "         cachalot calibrate --check others.csv --models models.json");
  command->callback([options, &chosen] { chosen.run = [options] { return run(*options); }; });
}

}  // namespace cachalot::apps
