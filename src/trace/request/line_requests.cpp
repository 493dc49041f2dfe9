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
               bool skip_bad_lines)
      : lines_(std::move(lines)),
        shown_path_(shown_path(path)),
        parser_(std::move(parser)),
        skip_bad_lines_(skip_bad_lines) {}

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
    Error placed =
        Error::make(error.code, "%s:%llu: %s", shown_path_.c_str(),
                    static_cast<unsigned long long>(lines_.line_number()), error.message);
    placed.detail = lines_.line_number();
    return placed;
  }

  LineReader lines_;
  std::string shown_path_;
  std::unique_ptr<LineParser> parser_;
  bool skip_bad_lines_;
  std::optional<Error> file_error_;
  std::uint64_t skipped_lines_ = 0;
};

class UndecidedParser final : public LineParser {
 public:
  explicit UndecidedParser(std::uint64_t block_tokens) : block_tokens_(block_tokens) {}

  Result<bool> parse(std::string_view line, Request& request) override {
    if (decided_ == nullptr) {
      const std::optional<TraceFormat> format = detect_format(line);
      if (!format || *format == TraceFormat::kWeka) return complaint(line);
      decided_ = make_line_parser(*format, block_tokens_);
    }
    return decided_->parse(line, request);
  }

  TraceProperties properties() const override {
    return decided_ == nullptr ? TraceProperties{} : decided_->properties();
  }

 private:
  static Error complaint(std::string_view line) {
    simdjson::dom::parser parser{LineReader::kMaxLineBytes};
    simdjson::dom::element document;
    const auto error = parser.parse(line.data(), line.size(), false).get(document);
    if (error != simdjson::SUCCESS) return not_json(error);
    if (!document.is_object()) {
      return Error::make(Code::kBadInput, "%s is not an object", shown_value(document).c_str());
    }
    return Error::make(Code::kBadInput,
                       "the format cannot be told from these fields, expected those of mooncake, "
                       "weka, azure or dynamo");
  }

  std::uint64_t block_tokens_;
  std::unique_ptr<LineParser> decided_;
};

}  // namespace

std::unique_ptr<LineParser> make_undecided_parser(std::uint64_t block_tokens) {
  return std::make_unique<UndecidedParser>(block_tokens);
}

std::unique_ptr<LineParser> make_line_parser(TraceFormat format, std::uint64_t block_tokens) {
  switch (format) {
    case TraceFormat::kAzure:
      return make_azure_parser();
    case TraceFormat::kDynamo:
      return make_dynamo_parser();
    case TraceFormat::kMooncake:
      return make_mooncake_parser(block_tokens);
    case TraceFormat::kWeka:
    case TraceFormat::kAuto:
      break;
  }
  return make_undecided_parser(block_tokens);
}

std::unique_ptr<RequestReader> make_line_reader(std::unique_ptr<ByteSource> source,
                                                const std::string& path,
                                                std::unique_ptr<LineParser> parser,
                                                bool skip_bad_lines) {
  return std::make_unique<LineRequests>(LineReader::over(std::move(source), path), path,
                                        std::move(parser), skip_bad_lines);
}

}  // namespace cachalot::trace
