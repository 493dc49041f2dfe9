#include "sched/calibration/measured_rows.h"

#include <algorithm>

#include "sched/calibration/csv_file.h"

namespace cachalot::sched {
namespace {

enum Column : std::size_t {
  kGpu,
  kEngine,
  kEngineVersion,
  kModel,
  kPrecision,
  kTp,
  kIsl,
  kOsl,
  kConcurrency,
  kTtft,
  kTpot
};
constexpr const char* kColumns[] = {"gpu", "engine", "engine_version", "model",   "precision", "tp",
                                    "isl", "osl",    "concurrency",    "ttft_ms", "tpot_ms"};

Result<double> positive(const CsvFile& file, std::size_t row, Column column) {
  CACHALOT_TRY_ASSIGN(const double value, file.number(row, column));
  if (value > 0) return value;
  return file.error_at(row, std::string(kColumns[column]) + " is 0, expected a number above 0");
}

Result<FitSubject> subject_of(const CsvFile& file, std::size_t row) {
  FitSubject subject;
  CACHALOT_TRY_ASSIGN(subject.gpu, file.name(row, kGpu));
  CACHALOT_TRY_ASSIGN(subject.engine, file.name(row, kEngine));
  CACHALOT_TRY_ASSIGN(subject.model, file.name(row, kModel));
  CACHALOT_TRY_ASSIGN(subject.precision, file.name(row, kPrecision));
  const Result<GpuSpec> gpu = find_gpu(subject.gpu);
  if (!gpu) return file.error_at(row, gpu.error().message);
  const Result<ServedModel> model = find_served_model(subject.model);
  if (!model) return file.error_at(row, model.error().message);
  const Result<Precision> precision = parse_precision(subject.precision);
  if (!precision) return file.error_at(row, precision.error().message);
  if (*precision == Precision::kFp8 && gpu->fp8_flops == 0)
    return file.error_at(row, "precision is fp8, but " + subject.gpu + " has no fp8 operations");
  return subject;
}

}  // namespace

Result<std::vector<MeasuredGroup>> read_measured_rows(const std::string& path) {
  CACHALOT_TRY_ASSIGN(const CsvFile file, CsvFile::read(path, kColumns));
  std::vector<MeasuredGroup> groups;
  for (std::size_t row = 0; row < file.rows(); ++row) {
    CACHALOT_TRY_ASSIGN(const FitSubject subject, subject_of(file, row));
    MeasuredRow measured;
    CACHALOT_TRY_ASSIGN(measured.tensor_parallel, positive(file, row, kTp));
    if (measured.tensor_parallel < 1) return file.error_at(row, "tp is below 1");
    CACHALOT_TRY_ASSIGN(measured.input_tokens, positive(file, row, kIsl));
    CACHALOT_TRY_ASSIGN(measured.output_tokens, positive(file, row, kOsl));
    CACHALOT_TRY_ASSIGN(measured.concurrency, positive(file, row, kConcurrency));
    CACHALOT_TRY_ASSIGN(const double ttft_ms, positive(file, row, kTtft));
    CACHALOT_TRY_ASSIGN(const double tpot_ms, positive(file, row, kTpot));
    measured.ttft_s = ttft_ms / 1e3;
    measured.tpot_s = tpot_ms / 1e3;
    auto group = std::find_if(groups.begin(), groups.end(),
                              [&](const MeasuredGroup& each) { return each.subject == subject; });
    if (group == groups.end()) group = groups.insert(groups.end(), {subject, {}});
    group->rows.push_back(measured);
  }
  return groups;
}

}  // namespace cachalot::sched
