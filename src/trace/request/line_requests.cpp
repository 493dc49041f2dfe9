// Requests of formats that have one a line, and the choice among these formats.
#include <simdjson.h>

#include <optional>
#include <utility>

#include "trace/file/line_reader.h"
#include "trace/request/json_value.h"
#include "trace/request/request_reader.h"

namespace cachalot::trace {
namespace {

bool is_blank(std::string_view line) {
  return line.find_first_not_of(" \t\r") == std::string_view::npos;
}

class LineRequests final : public RequestReader {
 public:
  LineRequests(LineReader lines, const std::string& path, std::unique_ptr<LineParser> parser,
               bool skip_bad_lines, bool is_array)
      : lines_(std::move(lines)),
        shown_path_(shown_path(path)),
        parser_(std::move(parser)),
        skip_bad_lines_(skip_bad_lines),
        is_array_(is_array) {}

  Result<bool> next(Request& request) override {
    while (!file_error_) {
      const Result<LineReader::Found> found = lines_.next();
      if (!found) {
        file_error_ = found.error();
        break;
      }
      if (*found == LineReader::Found::kEnd) return false;
      if (*found == LineReader::Found::kLine && is_blank(lines_.line())) continue;
      const Result<bool> is_request = parse(*found, request);
      if (is_request && *is_request) return true;
      if (is_request) continue;
      if (!skip_bad_lines_) return at_this_line(is_request.error());
      ++skipped_lines_;
    }
    return *file_error_;
  }

  TraceProperties properties() const override { return parser_->properties(); }
  std::uint64_t skipped_lines() const override { return skipped_lines_; }

 private:
  Result<bool> parse(LineReader::Found found, Request& request) {
    if (found == LineReader::Found::kLine) return parser_->parse(lines_.line(), request);
    return Error::make(Code::kBadInput, "the line is longer than %zu MiB",
                       LineReader::kMaxLineBytes >> 20);
  }

  Error at_this_line(const Error& error) const {
    Error placed = Error::make(
        error.code, is_array_ ? "%s: element %llu: %s" : "%s:%llu: %s", shown_path_.c_str(),
        static_cast<unsigned long long>(lines_.line_number()), error.message);
    placed.detail = lines_.line_number();
    return placed;
  }

  LineReader lines_;
  std::string shown_path_;
  std::unique_ptr<LineParser> parser_;
  bool skip_bad_lines_;
  bool is_array_;
  std::optional<Error> file_error_;
  std::uint64_t skipped_lines_ = 0;
};

class UndecidedParser final : public LineParser {
 public:
  explicit UndecidedParser(const ParserOptions& options) : options_(options) {}

  Result<bool> parse(std::string_view line, Request& request) override {
    if (decided_ == nullptr) {
      const std::optional<TraceFormat> format = detect_format(line);
      if (!format || *format == TraceFormat::kWeka) return complaint(line);
      if (*format == TraceFormat::kAiperf) return late_sessions();
      decided_ = make_line_parser(*format, options_);
    }
    return decided_->parse(line, request);
  }

  TraceProperties properties() const override {
    return decided_ == nullptr ? TraceProperties{} : decided_->properties();
  }

 private:
  static Error complaint(std::string_view line) {
    simdjson::dom::parser parser{LineReader::kMaxLineBytes};
    const Result<simdjson::dom::object> object = object_of_line(parser, line);
    if (!object) return object.error();
    return Error::make(Code::kBadInput,
                       "the format cannot be told from %s, expected the fields of one of %s",
                       fields_of(*object).c_str(), trace_format_names(", ").c_str());
  }

  // `the fields "id", "conversations"`: the first ones.
  static std::string fields_of(const simdjson::dom::object& object) {
    constexpr std::size_t kMostFields = 8;
    std::string names;
    std::size_t fields = 0;
    for (const auto& [name, value] : object) {
      if (fields++ < kMostFields) names += (names.empty() ? "" : ", ") + shown_text(name);
    }
    if (fields == 0) return "an object without fields";
    return (fields == 1 ? "the field " : "the fields ") + names +
           (fields > kMostFields ? ", …" : "");
  }

  // They are read as a whole, which is decided by the beginning of the file.
  static Error late_sessions() {
    return Error::make(Code::kBadInput,
                       "session_id: sessions do not begin at the beginning of the file, expected "
                       "--trace-format aiperf");
  }

  ParserOptions options_;
  std::unique_ptr<LineParser> decided_;
};

}  // namespace

std::unique_ptr<LineParser> make_undecided_parser(const ParserOptions& options) {
  return std::make_unique<UndecidedParser>(options);
}

std::unique_ptr<LineParser> make_line_parser(TraceFormat format, const ParserOptions& options) {
  switch (format) {
    case TraceFormat::kAzure:
      return make_azure_parser();
    case TraceFormat::kBurstGpt:
      return make_burstgpt_parser();
    case TraceFormat::kDynamo:
      return make_dynamo_parser();
    case TraceFormat::kMooncake:
      return make_mooncake_parser(options);
    case TraceFormat::kBailian:
      return make_bailian_parser(options);
    case TraceFormat::kTair:
      return make_tair_parser(options);
    case TraceFormat::kWeka:
    case TraceFormat::kAiperf:
    case TraceFormat::kAuto:
      break;
  }
  return make_undecided_parser(options);
}

std::unique_ptr<RequestReader> make_line_reader(std::unique_ptr<ByteSource> source,
                                                const std::string& path,
                                                std::unique_ptr<LineParser> parser,
                                                bool skip_bad_lines, bool is_array) {
  return std::make_unique<LineRequests>(LineReader::over(std::move(source), path), path,
                                        std::move(parser), skip_bad_lines, is_array);
}

}  // namespace cachalot::trace
