// Mooncake's format, a request a line:
//
//   {"timestamp": 27482, "input_length": 6955, "output_length": 52, "hash_ids": [46, 47, 48]}
//
// timestamp in milliseconds, lengths in tokens; each field once, others are ignored.
#include <simdjson.h>

#include "trace/file/line_reader.h"
#include "trace/request/json_value.h"
#include "trace/request/mooncake_fields.h"
#include "trace/request/request_reader.h"

namespace cachalot::trace {
namespace {

namespace dom = simdjson::dom;

constexpr const char* kFieldNames[kMooncakeFields] = {"timestamp", "input_length", "output_length",
                                                      "hash_ids"};

Status read_field(MooncakeField field, const dom::element& value, Request& request) {
  const char* const name = kFieldNames[field];
  switch (field) {
    case kTimestamp: {
      CACHALOT_TRY_ASSIGN(request.timestamp_ms, read_number(value, name));
      return {};
    }
    case kInputLength: {
      CACHALOT_TRY_ASSIGN(request.input_tokens, read_integer(value, name));
      return {};
    }
    case kOutputLength: {
      CACHALOT_TRY_ASSIGN(request.output_tokens, read_integer(value, name));
      return {};
    }
    case kHashIds:
      return read_ids(value, name, request.hash_ids);
    case kMooncakeFields:
      break;
  }
  return {};
}

// By these other dialects tell that they mean something else by the same fields.
constexpr const char* kForeignFields[] = {"chat_id", "session_id", "delay"};

Status check_is_mooncake(const dom::object& object) {
  for (const auto& [key, value] : object) {
    for (const char* const foreign : kForeignFields) {
      if (key != foreign) continue;
      return Error::make(Code::kBadInput,
                         "%s: unknown in the lines before, so the format is in doubt, expected "
                         "--trace-format mooncake, aiperf or bailian",
                         foreign);
    }
  }
  return {};
}

class MooncakeParser final : public LineParser {
 public:
  explicit MooncakeParser(const ParserOptions& options) : options_(options) {}

  Result<bool> parse(std::string_view line, Request& request) override {
    CACHALOT_TRY_ASSIGN(const dom::object object, object_of_line(parser_, line));
    if (!options_.is_named) CACHALOT_TRY(check_is_mooncake(object));
    CACHALOT_TRY_ASSIGN(const unsigned seen, read_mooncake_fields(object, request));
    CACHALOT_TRY(check_mooncake_fields(seen));
    CACHALOT_TRY(check_number_of_ids("hash_ids", request.hash_ids.size(), "input_length",
                                     request.input_tokens, options_.checked_tokens()));
    return true;
  }

  TraceProperties properties() const override { return {}; }

 private:
  ParserOptions options_;
  dom::parser parser_{LineReader::kMaxLineBytes};
};

}  // namespace

Result<unsigned> read_mooncake_fields(const dom::object& object, Request& request) {
  unsigned seen = 0;
  for (const auto& [key, value] : object) {
    for (unsigned field = 0; field < kMooncakeFields; ++field) {
      if (key != kFieldNames[field]) continue;
      if ((seen >> field & 1u) != 0) {
        return Error::make(Code::kBadInput, "%s: stands there twice", kFieldNames[field]);
      }
      seen |= 1u << field;
      CACHALOT_TRY(read_field(static_cast<MooncakeField>(field), value, request));
    }
  }
  return seen;
}

Status check_mooncake_fields(unsigned seen, unsigned optional) {
  for (unsigned field = 0; field < kMooncakeFields; ++field) {
    if (((seen | optional) >> field & 1u) != 0) continue;
    return Error::make(Code::kBadInput, "%s: missing", kFieldNames[field]);
  }
  return {};
}

std::unique_ptr<LineParser> make_mooncake_parser(const ParserOptions& options) {
  return std::make_unique<MooncakeParser>(options);
}

}  // namespace cachalot::trace
