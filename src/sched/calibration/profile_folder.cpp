#include "sched/calibration/profile_folder.h"

#include <algorithm>
#include <charconv>
#include <filesystem>

#include "sched/calibration/csv_file.h"
#include "sched/calibration/flat_yaml.h"
#include "trace/file/byte_source.h"

namespace cachalot::sched {
namespace {

namespace fs = std::filesystem;

// "NAME.csv.gz" where there is one, else "NAME.csv", whose absence the reader reports.
std::string table_path(const std::string& folder, const char* name) {
  const fs::path plain = fs::path(folder) / (std::string(name) + ".csv");
  const fs::path zipped = plain.string() + ".gz";
  std::error_code ignored;
  return fs::exists(zipped, ignored) ? zipped.string() : plain.string();
}

Result<std::uint64_t> tensor_parallel_of(const std::string& folder) {
  fs::path path = fs::path(folder).lexically_normal();
  if (path.filename().empty()) path = path.parent_path();
  const std::string name = path.filename().string();
  const std::size_t mark = name.rfind("tp");
  std::uint64_t degree = 0;
  if (mark != std::string::npos && (mark == 0 || name[mark - 1] == '-')) {
    const char* const end = name.data() + name.size();
    const auto [stop, problem] = std::from_chars(name.data() + mark + 2, end, degree);
    if (problem == std::errc() && stop == end && degree != 0) return degree;
  }
  return Error::make(Code::kInvalidArgument,
                     "profile folder %s: the name does not end in -tpN, expected the degree of "
                     "tensor parallelism there",
                     trace::shown_path(folder).c_str());
}

// layer,<x>,time_us
Status read_curves(const std::string& path, const char* x_name,
                   std::map<std::string, Curve>& curves) {
  const char* const columns[] = {"layer", x_name, "time_us"};
  CACHALOT_TRY_ASSIGN(const CsvFile file, CsvFile::read(path, columns));
  for (std::size_t row = 0; row < file.rows(); ++row) {
    CACHALOT_TRY_ASSIGN(const std::string layer, file.name(row, 0));
    CACHALOT_TRY_ASSIGN(const std::uint64_t x, file.integer(row, 1));
    CACHALOT_TRY_ASSIGN(const double us, file.number(row, 2));
    curves[layer].emplace_back(static_cast<double>(x), us);
  }
  for (auto& [layer, curve] : curves) {
    std::sort(curve.begin(), curve.end());
    for (std::size_t i = 1; i < curve.size(); ++i) {
      if (curve[i].first != curve[i - 1].first) continue;
      return Error::make(Code::kBadInput, "%s: layer %s has two times for %g %s",
                         trace::shown_path(path).c_str(), layer.c_str(), curve[i].first, x_name);
    }
  }
  return {};
}

Status read_attention(const std::string& path, std::vector<AttentionPoint>& points) {
  const char* const columns[] = {"prefill_chunk", "kv_prefill", "n_decode", "kv_decode", "time_us"};
  CACHALOT_TRY_ASSIGN(const CsvFile file, CsvFile::read(path, columns));
  for (std::size_t row = 0; row < file.rows(); ++row) {
    AttentionPoint point;
    double* const values[] = {&point.chunk, &point.chunk_context, &point.sequences,
                              &point.sequence_context};
    for (std::size_t column = 0; column < 4; ++column) {
      CACHALOT_TRY_ASSIGN(const std::uint64_t value, file.integer(row, column));
      *values[column] = static_cast<double>(value);
    }
    CACHALOT_TRY_ASSIGN(point.us, file.number(row, 4));
    points.push_back(point);
  }
  return {};
}

Result<SkewAxis> read_axis(const FlatYaml& meta, const std::string& name) {
  const std::string path = "skew_fit.bucket_axes." + name;
  CACHALOT_TRY_ASSIGN(const std::vector<double> edges, meta.numbers(path + "_bins"));
  SkewAxis axis;
  CACHALOT_TRY_ASSIGN(axis.labels, meta.list(path + "_labels"));
  if (axis.labels.empty() || edges.size() != axis.labels.size() + 1) {
    return Error::make(Code::kBadInput,
                       "meta.yaml: %s has %zu edges and %zu labels, expected one "
                       "edge more than labels",
                       path.c_str(), edges.size(), axis.labels.size());
  }
  axis.upper_edges.assign(edges.begin() + 1, edges.end());
  return axis;
}

Status read_skew(const std::string& folder, const FlatYaml& meta, ProfileTables& tables) {
  SkewTable& skew = tables.skew;
  CACHALOT_TRY_ASSIGN(skew.sequences, read_axis(meta, "n"));
  CACHALOT_TRY_ASSIGN(skew.skew_rate, read_axis(meta, "skew_rate"));
  CACHALOT_TRY_ASSIGN(skew.longest_context, read_axis(meta, "kv_big"));
  CACHALOT_TRY_ASSIGN(skew.chunk_context, read_axis(meta, "kp"));
  CACHALOT_TRY_ASSIGN(
      skew.alpha_default,
      meta.number("skew_fit.per_tp." + std::to_string(tables.tensor_parallel) + ".alpha_default"));
  const char* const columns[] = {"pc",       "n_label", "skew_rate_label", "kv_big_label",
                                 "kp_label", "alpha",   "n_samples"};
  CACHALOT_TRY_ASSIGN(const CsvFile file, CsvFile::read(table_path(folder, "skew_fit"), columns));
  for (std::size_t row = 0; row < file.rows(); ++row) {
    CACHALOT_TRY_ASSIGN(const std::uint64_t chunk, file.integer(row, 0));
    CACHALOT_TRY_ASSIGN(const double alpha, file.any_number(row, 5));
    skew.alpha[{chunk, file.text(row, 1), file.text(row, 2), file.text(row, 3),
                file.text(row, 4)}] = alpha;
  }
  tables.has_skew = true;
  return {};
}

}  // namespace

Result<ProfileTables> read_profile_folder(const std::string& folder) {
  std::error_code ignored;
  if (!fs::is_directory(folder, ignored)) {
    return Error::make(Code::kInvalidArgument, "profile %s: no such folder",
                       trace::shown_path(folder).c_str());
  }
  ProfileTables tables;
  CACHALOT_TRY_ASSIGN(tables.tensor_parallel, tensor_parallel_of(folder));
  CACHALOT_TRY_ASSIGN(const FlatYaml meta,
                      FlatYaml::read((fs::path(folder) / "meta.yaml").string()));
  CACHALOT_TRY_ASSIGN(tables.hardware, meta.text("hardware"));
  CACHALOT_TRY_ASSIGN(tables.model, meta.text("model"));
  CACHALOT_TRY_ASSIGN(const std::vector<double> degrees, meta.numbers("tp_degrees"));
  if (std::find(degrees.begin(), degrees.end(), static_cast<double>(tables.tensor_parallel)) ==
      degrees.end()) {
    return Error::make(
        Code::kBadInput, "profile folder %s: its meta.yaml has no degree %llu in tp_degrees",
        trace::shown_path(folder).c_str(), static_cast<unsigned long long>(tables.tensor_parallel));
  }
  CACHALOT_TRY(read_curves(table_path(folder, "dense"), "tokens", tables.dense));
  CACHALOT_TRY(read_curves(table_path(folder, "per_sequence"), "sequences", tables.per_sequence));
  CACHALOT_TRY(read_attention(table_path(folder, "attention"), tables.attention));
  if (!meta.has("skew_fit.enabled")) return tables;
  CACHALOT_TRY_ASSIGN(const bool has_skew, meta.boolean("skew_fit.enabled"));
  if (has_skew) CACHALOT_TRY(read_skew(folder, meta, tables));
  return tables;
}

}  // namespace cachalot::sched
