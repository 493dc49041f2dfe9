// A small table of a CSV file, plain or gzip: columns by name, values checked, errors with file and line.
//
// No quotes: values are numbers and plain names.
#pragma once

#include <cachalot/result.h>

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace cachalot::sched {

class CsvFile {
 public:
  // The header must name exactly these columns, in any order.
  // @errors kInvalidArgument: no such file; kBadInput: a column is missing, unknown or there twice; a row has another
  //         number of values; no rows; kIo
  static Result<CsvFile> read(const std::string& path, std::span<const char* const> columns);

  std::size_t rows() const { return lines_.size(); }

  // Of the column's place in `columns` of read().
  const std::string& text(std::size_t row, std::size_t column) const {
    return values_[row * columns_.size() + column];
  }
  // @errors kBadInput: names file, line, column and value. number(): finite and not below 0
  Result<double> number(std::size_t row, std::size_t column) const;
  Result<double> any_number(std::size_t row, std::size_t column) const;  // may be negative
  Result<std::uint64_t> integer(std::size_t row, std::size_t column) const;
  Result<std::string> name(std::size_t row, std::size_t column) const;  // not empty

  // @return kBadInput: "file:line: <message>"
  Error error_at(std::size_t row, const std::string& message) const;

 private:
  Status read_header(std::string_view line, std::span<const char* const> columns);
  Status add_row(std::string_view line, std::uint64_t number);

  std::string shown_path_;
  std::vector<std::string> columns_;
  std::vector<std::size_t> place_;  // of a value of a line: its column
  std::vector<std::string> values_;
  std::vector<std::uint64_t> lines_;
};

}  // namespace cachalot::sched
