#include "sched/calibration/fitted_file.h"

#include <simdjson.h>

#include <algorithm>
#include <cmath>
#include <new>

#include "sched/timing/quantiles.h"
#include "trace/file/byte_source.h"

namespace cachalot::sched {
namespace {

namespace dom = simdjson::dom;

constexpr std::size_t kMostBytes = std::size_t{4} << 20;

Result<std::string> read_whole(const std::string& path) {
  CACHALOT_TRY_ASSIGN(const std::unique_ptr<trace::ByteSource> source,
                      trace::ByteSource::open_text(path));
  std::string text(kMostBytes, '\0');
  CACHALOT_TRY_ASSIGN(const std::size_t bytes, source->read(text));
  if (bytes == kMostBytes) {
    return Error::make(Code::kBadInput, "%s: longer than 4 MiB, expected fitted models",
                       trace::shown_path(path).c_str());
  }
  text.resize(bytes);
  return text;
}

Error wrong(const char* message, std::string_view name) {
  return Error::make(Code::kBadInput, "%s \"%.40s\"", message, std::string(name).c_str());
}

Status read_coefficients(const dom::element& value, FitValues& values) {
  dom::object object;
  if (value.get(object) != simdjson::SUCCESS) return wrong("no object:", "coefficients");
  std::array<bool, kFitCoefficients> seen = {};
  for (const auto& [key, number] : object) {
    std::size_t i = 0;
    while (i < kFitCoefficients && key != fit_coefficients()[i].name) ++i;
    if (i == kFitCoefficients) return wrong("unknown coefficient", key);
    if (seen[i]) return wrong("there twice: coefficient", key);
    seen[i] = true;
    const double most = fit_coefficients()[i].most;
    if (number.get(values[i]) != simdjson::SUCCESS || !(values[i] >= kLeastCoefficient) ||
        values[i] > most) {
      return Error::make(
          Code::kBadInput, "coefficient \"%s\" is %.40s, expected a number from %g to %.0f",
          fit_coefficients()[i].name, simdjson::minify(number).c_str(), kLeastCoefficient, most);
    }
  }
  for (std::size_t i = 0; i < kFitCoefficients; ++i) {
    if (!seen[i]) return wrong("missing: coefficient", fit_coefficients()[i].name);
  }
  return {};
}

Result<FittedEntry> parse_entry(const dom::element& value) {
  dom::object object;
  if (value.get(object) != simdjson::SUCCESS) return wrong("no object: an entry of", "models");
  FittedEntry entry;
  const std::pair<std::string_view, std::string*> names[] = {
      {"gpu", &entry.subject.gpu},
      {"engine", &entry.subject.engine},
      {"model", &entry.subject.model},
      {"precision", &entry.subject.precision}};
  bool has_coefficients = false;
  for (const auto& [key, member] : object) {
    if (key == "coefficients") {
      CACHALOT_TRY(read_coefficients(member, entry.values));
      has_coefficients = true;
      continue;
    }
    if (key == "fit") continue;  // how well it fits: for people
    const auto* const name =
        std::find_if(std::begin(names), std::end(names),
                     [&, &wanted = key](const auto& each) { return each.first == wanted; });
    std::string_view text;
    if (name == std::end(names)) return wrong("unknown key", key);
    if (member.get(text) != simdjson::SUCCESS || text.empty())
      return wrong("expected a name: key", key);
    *name->second = text;
  }
  for (const auto& [key, text] : names) {
    if (text->empty()) return wrong("missing: key", key);
  }
  if (!has_coefficients) return wrong("missing: key", "coefficients");
  CACHALOT_TRY(find_gpu(entry.subject.gpu));
  CACHALOT_TRY(find_served_model(entry.subject.model));
  CACHALOT_TRY(parse_precision(entry.subject.precision));
  return entry;
}

Result<std::vector<FittedEntry>> parse_file(const std::string& text) {
  dom::parser parser;
  dom::element document;
  const auto error = parser.parse(text).get(document);
  if (error == simdjson::MEMALLOC) throw std::bad_alloc();  // as containers do
  if (error != simdjson::SUCCESS) {
    return Error::make(Code::kBadInput, "not valid JSON: %s", simdjson::error_message(error));
  }
  dom::array models;
  if (document["models"].get(models) != simdjson::SUCCESS)
    return wrong("expected an array: key", "models");
  std::vector<FittedEntry> entries;
  for (const dom::element& each : models) {
    CACHALOT_TRY_ASSIGN(FittedEntry entry, parse_entry(each));
    entries.push_back(std::move(entry));
  }
  return entries;
}

struct ErrorLists {
  std::vector<double> ttft, tpot;

  FitErrors summary() const {
    return {.subject = {},
            .rows = ttft.size(),
            .ttft_median = quantile_of(ttft, 0.5),
            .tpot_median = quantile_of(tpot, 0.5),
            .ttft_p90 = quantile_of(ttft, 0.9),
            .tpot_p90 = quantile_of(tpot, 0.9)};
  }
};

}  // namespace

std::vector<FittedEntry> fit_groups(std::span<const MeasuredGroup> groups) {
  std::vector<FittedEntry> entries;
  for (const MeasuredGroup& group : groups) {
    entries.push_back({group.subject, fit_rows(group.rows, *find_gpu(group.subject.gpu),
                                               *find_served_model(group.subject.model),
                                               *parse_precision(group.subject.precision))});
  }
  return entries;
}

Result<std::vector<FittedEntry>> read_fitted_file(const std::string& path) {
  CACHALOT_TRY_ASSIGN(const std::string text, read_whole(path));
  Result<std::vector<FittedEntry>> entries = parse_file(text);
  if (entries) return entries;
  return Error::make(Code::kBadInput, "%s: %s", trace::shown_path(path).c_str(),
                     entries.error().message);
}

Result<FitReport> check_groups(std::span<const MeasuredGroup> groups,
                               std::span<const FittedEntry> models) {
  FitReport report;
  ErrorLists all;
  for (const MeasuredGroup& group : groups) {
    const auto entry = std::find_if(models.begin(), models.end(), [&](const FittedEntry& each) {
      return each.subject == group.subject;
    });
    if (entry == models.end()) {
      return Error::make(Code::kInvalidArgument, "no fitted model of %s",
                         group.subject.text().c_str());
    }
    ErrorLists own;
    for (const MeasuredRow& row : group.rows) {
      if (row.concurrency < kLeastConcurrency) continue;
      CACHALOT_TRY_ASSIGN(
          const FittedModel model,
          FittedModel::make(entry->values, *find_gpu(group.subject.gpu),
                            *find_served_model(group.subject.model),
                            *parse_precision(group.subject.precision), row.tensor_parallel));
      const FittedModel::Prediction said =
          model.predict(row.input_tokens, row.output_tokens, row.concurrency);
      for (ErrorLists* lists : {&own, &all}) {
        lists->ttft.push_back(std::abs(said.ttft_s / row.ttft_s - 1));
        lists->tpot.push_back(std::abs(said.tpot_s / row.tpot_s - 1));
      }
    }
    report.groups.push_back(own.summary());
    report.groups.back().subject = group.subject;
  }
  report.all = all.summary();
  return report;
}

}  // namespace cachalot::sched
