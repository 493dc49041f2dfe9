#include "trace/request_trace.h"

#include <simdjson.h>

#include <optional>
#include <string_view>
#include <utility>

#include "trace/line_reader.h"

namespace cachalot::trace {
namespace {

namespace dom = simdjson::dom;

enum Field : unsigned { kTimestamp, kInputLength, kOutputLength, kHashIds, kFields };
constexpr const char* kFieldNames[kFields] = {"timestamp", "input_length", "output_length",
                                              "hash_ids"};

// A value as messages show it: short, and without characters that move a terminal's cursor.
std::string shown_value(const dom::element& value) {
  switch (value.type()) {
    case dom::element_type::ARRAY:
      return "an array";
    case dom::element_type::OBJECT:
      return "an object";
    case dom::element_type::STRING:
      break;
    default:
      return simdjson::minify(value);
  }
  std::string_view text;
  if (value.get(text) != simdjson::SUCCESS) return "a string";
  std::string shown = "\"";
  for (const char c : text.substr(0, 40)) {
    shown += static_cast<unsigned char>(c) < 0x20 || c == 0x7f ? '?' : c;
  }
  return shown + (text.size() > 40 ? "...\"" : "\"");
}

Error not_an_integer(const dom::element& value, const char* where) {
  return Error::make(Code::kBadInput, "%s: %s is not an unsigned 64-bit integer", where,
                     shown_value(value).c_str());
}

Status read_time(const dom::element& value, double& time_ms) {
  if (value.get(time_ms) != simdjson::SUCCESS) {
    return Error::make(Code::kBadInput, "timestamp: %s is not a number",
                       shown_value(value).c_str());
  }
  if (time_ms >= 0) return {};
  return Error::make(Code::kBadInput, "timestamp: %s is negative", shown_value(value).c_str());
}

Status read_length(const dom::element& value, const char* name, std::uint64_t& tokens) {
  if (value.get(tokens) == simdjson::SUCCESS) return {};
  return not_an_integer(value, name);
}

Status read_ids(const dom::element& value, std::vector<std::uint64_t>& ids) {
  dom::array array;
  if (value.get(array) != simdjson::SUCCESS) {
    return Error::make(Code::kBadInput, "hash_ids: %s is not an array", shown_value(value).c_str());
  }
  ids.clear();
  for (const dom::element& item : array) {
    std::uint64_t id = 0;
    if (item.get(id) != simdjson::SUCCESS) {
      return not_an_integer(item, ("hash_ids[" + std::to_string(ids.size()) + "]").c_str());
    }
    ids.push_back(id);
  }
  return {};
}

Status read_field(Field field, const dom::element& value, Request& request) {
  switch (field) {
    case kTimestamp:
      return read_time(value, request.timestamp_ms);
    case kInputLength:
      return read_length(value, kFieldNames[field], request.input_tokens);
    case kOutputLength:
      return read_length(value, kFieldNames[field], request.output_tokens);
    case kHashIds:
      return read_ids(value, request.hash_ids);
    case kFields:
      break;
  }
  return {};
}

Status read_fields(const dom::object& object, Request& request) {
  unsigned seen = 0;
  for (const auto& [key, value] : object) {
    for (unsigned field = 0; field < kFields; ++field) {
      if (key != kFieldNames[field]) continue;
      if ((seen >> field & 1u) != 0) {
        return Error::make(Code::kBadInput, "%s: stands there twice", kFieldNames[field]);
      }
      seen |= 1u << field;
      CACHALOT_TRY(read_field(static_cast<Field>(field), value, request));
    }
  }
  for (unsigned field = 0; field < kFields; ++field) {
    if ((seen >> field & 1u) != 0) continue;
    return Error::make(Code::kBadInput, "%s: missing", kFieldNames[field]);
  }
  return {};
}

Status check_number_of_ids(const Request& request, std::uint64_t block_tokens) {
  if (block_tokens == 0) return {};
  const std::uint64_t whole = request.input_tokens / block_tokens;
  const std::uint64_t begun = whole + (request.input_tokens % block_tokens == 0 ? 0 : 1);
  const std::uint64_t ids = request.hash_ids.size();
  if (ids == whole || ids == begun) return {};
  const std::string or_more = begun == whole ? "" : " or " + std::to_string(begun);
  return Error::make(Code::kBadInput,
                     "hash_ids: %llu ids for input_length %llu, expected %llu%s at %llu tokens a "
                     "block",
                     static_cast<unsigned long long>(ids),
                     static_cast<unsigned long long>(request.input_tokens),
                     static_cast<unsigned long long>(whole), or_more.c_str(),
                     static_cast<unsigned long long>(block_tokens));
}

}  // namespace

class RequestTrace::Reader {
 public:
  Reader(LineReader lines, const std::string& path, const RequestTraceOptions& options)
      : lines_(std::move(lines)), shown_path_(shown_path(path)), options_(options) {}

  Result<bool> next(Request& request) {
    while (!file_error_) {
      Result<LineReader::Found> found = lines_.next();
      if (!found) {
        file_error_ = found.error();
      } else if (*found == LineReader::Found::kEnd) {
        return end();
      } else if (*found == LineReader::Found::kTooLong || !is_blank(lines_.line())) {
        const Status status = parse(*found, request);
        if (status) {
          ++requests_;
          return true;
        }
        if (!options_.skip_bad_lines) return at_this_line(status.error());
        ++skipped_lines_;
      }
    }
    return *file_error_;
  }

  std::uint64_t requests() const { return requests_; }
  std::uint64_t skipped_lines() const { return skipped_lines_; }

 private:
  static bool is_blank(std::string_view line) {
    return line.find_first_not_of(" \t\r") == std::string_view::npos;
  }

  Status parse(LineReader::Found found, Request& request) {
    if (found == LineReader::Found::kTooLong) {
      return Error::make(Code::kBadInput, "the line is longer than %zu MiB",
                         LineReader::kMaxLineBytes >> 20);
    }
    dom::element document;
    const auto error =
        parser_.parse(lines_.line().data(), lines_.line().size(), false).get(document);
    if (error != simdjson::SUCCESS) {
      return Error::make(Code::kBadInput, "not valid JSON: %s", simdjson::error_message(error));
    }
    dom::object object;
    if (document.get(object) != simdjson::SUCCESS) {
      return Error::make(Code::kBadInput, "%s is not an object", shown_value(document).c_str());
    }
    CACHALOT_TRY(read_fields(object, request));
    return check_number_of_ids(request, options_.block_tokens);
  }

  Error at_this_line(const Error& error) const {
    Error placed =
        Error::make(error.code, "%s:%llu: %s", shown_path_.c_str(),
                    static_cast<unsigned long long>(lines_.line_number()), error.message);
    placed.detail = lines_.line_number();
    return placed;
  }

  Result<bool> end() {
    if (requests_ > 0) return false;
    return Error::make(Code::kBadInput, "%s: no request in it (%llu bad lines were skipped)",
                       shown_path_.c_str(), static_cast<unsigned long long>(skipped_lines_));
  }

  static_assert(LineReader::kPaddingBytes >= simdjson::SIMDJSON_PADDING);

  LineReader lines_;
  std::string shown_path_;
  RequestTraceOptions options_;
  dom::parser parser_{LineReader::kMaxLineBytes};
  std::optional<Error> file_error_;
  std::uint64_t requests_ = 0;
  std::uint64_t skipped_lines_ = 0;
};

Result<RequestTrace> RequestTrace::open(const std::string& path,
                                        const RequestTraceOptions& options) {
  CACHALOT_TRY_ASSIGN(LineReader lines, LineReader::open(path));
  return RequestTrace(std::make_unique<Reader>(std::move(lines), path, options));
}

RequestTrace::RequestTrace(std::unique_ptr<Reader> reader) : reader_(std::move(reader)) {}
RequestTrace::RequestTrace(RequestTrace&&) noexcept = default;
RequestTrace& RequestTrace::operator=(RequestTrace&&) noexcept = default;
RequestTrace::~RequestTrace() = default;

Result<bool> RequestTrace::next(Request& request) {
  return reader_->next(request);
}
std::uint64_t RequestTrace::requests() const {
  return reader_->requests();
}
std::uint64_t RequestTrace::skipped_lines() const {
  return reader_->skipped_lines();
}

}  // namespace cachalot::trace
