#include "sched/calibration/csv_file.h"

#include <charconv>
#include <cmath>

#include "trace/file/line_reader.h"

namespace cachalot::sched {
namespace {

std::vector<std::string_view> split(std::string_view line) {
  if (line.ends_with('\r')) line.remove_suffix(1);
  std::vector<std::string_view> values;
  for (;;) {
    const std::size_t comma = line.find(',');
    values.push_back(line.substr(0, comma));
    if (comma == std::string_view::npos) return values;
    line.remove_prefix(comma + 1);
  }
}

template <class Number>
bool parse(const std::string& text, Number& number) {
  const char* const end = text.data() + text.size();
  const auto [stop, problem] = std::from_chars(text.data(), end, number);
  return problem == std::errc() && stop == end && !text.empty();
}

}  // namespace

Result<CsvFile> CsvFile::read(const std::string& path, std::span<const char* const> columns) {
  CACHALOT_TRY_ASSIGN(trace::LineReader lines, trace::LineReader::open(path));
  CsvFile file;
  file.shown_path_ = trace::shown_path(path);
  for (;;) {
    CACHALOT_TRY_ASSIGN(const trace::LineReader::Found found, lines.next());
    if (found == trace::LineReader::Found::kEnd) break;
    if (found == trace::LineReader::Found::kTooLong) {
      return Error::make(Code::kBadInput, "%s:%llu: the line is too long", file.shown_path_.c_str(),
                         static_cast<unsigned long long>(lines.line_number()));
    }
    if (lines.line().find_first_not_of(" \t\r") == std::string_view::npos) continue;
    if (file.columns_.empty()) {
      CACHALOT_TRY(file.read_header(lines.line(), columns));
    } else {
      CACHALOT_TRY(file.add_row(lines.line(), lines.line_number()));
    }
  }
  if (file.lines_.empty()) {
    return Error::make(Code::kBadInput, "%s: no rows, expected a header and rows below it",
                       file.shown_path_.c_str());
  }
  return file;
}

Status CsvFile::read_header(std::string_view line, std::span<const char* const> columns) {
  columns_.assign(columns.begin(), columns.end());
  std::vector<bool> seen(columns.size(), false);
  for (const std::string_view name : split(line)) {
    std::size_t column = 0;
    while (column < columns.size() && name != columns[column]) ++column;
    if (column == columns.size()) {
      std::string known;
      for (const char* each : columns) known += (known.empty() ? "" : ",") + std::string(each);
      return Error::make(Code::kBadInput, "%s: unknown column \"%.40s\", expected %s",
                         shown_path_.c_str(), std::string(name).c_str(), known.c_str());
    }
    if (seen[column]) {
      return Error::make(Code::kBadInput, "%s: column %s is there twice", shown_path_.c_str(),
                         columns[column]);
    }
    seen[column] = true;
    place_.push_back(column);
  }
  for (std::size_t column = 0; column < columns.size(); ++column) {
    if (!seen[column]) {
      return Error::make(Code::kBadInput, "%s: no column %s", shown_path_.c_str(), columns[column]);
    }
  }
  return {};
}

Status CsvFile::add_row(std::string_view line, std::uint64_t number) {
  const std::vector<std::string_view> values = split(line);
  if (values.size() != columns_.size()) {
    return Error::make(Code::kBadInput, "%s:%llu: %zu values, expected %zu", shown_path_.c_str(),
                       static_cast<unsigned long long>(number), values.size(), columns_.size());
  }
  const std::size_t first = values_.size();
  values_.resize(first + columns_.size());
  for (std::size_t i = 0; i < values.size(); ++i) values_[first + place_[i]] = values[i];
  lines_.push_back(number);
  return {};
}

Error CsvFile::error_at(std::size_t row, const std::string& message) const {
  return Error::make(Code::kBadInput, "%s:%llu: %s", shown_path_.c_str(),
                     static_cast<unsigned long long>(lines_[row]), message.c_str());
}

Result<double> CsvFile::any_number(std::size_t row, std::size_t column) const {
  double value = 0;
  if (parse(text(row, column), value) && std::isfinite(value)) return value;
  return error_at(
      row, columns_[column] + " is \"" + text(row, column).substr(0, 40) + "\", expected a number");
}

Result<double> CsvFile::number(std::size_t row, std::size_t column) const {
  CACHALOT_TRY_ASSIGN(const double value, any_number(row, column));
  if (value >= 0) return value;
  return error_at(row, columns_[column] + " is " + text(row, column).substr(0, 40) +
                           ", expected a number not below 0");
}

Result<std::uint64_t> CsvFile::integer(std::size_t row, std::size_t column) const {
  std::uint64_t value = 0;
  if (parse(text(row, column), value)) return value;
  return error_at(row, columns_[column] + " is \"" + text(row, column).substr(0, 40) +
                           "\", expected a whole number not below 0");
}

Result<std::string> CsvFile::name(std::size_t row, std::size_t column) const {
  if (!text(row, column).empty()) return text(row, column);
  return error_at(row, columns_[column] + " is empty, expected a name");
}

}  // namespace cachalot::sched
