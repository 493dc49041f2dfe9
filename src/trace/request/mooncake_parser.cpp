// Mooncake's format, a request a line:
//
//   {"timestamp": 27482, "input_length": 6955, "output_length": 52, "hash_ids": [46, 47, 48]}
//
// timestamp in milliseconds, lengths in tokens; each field once, others are ignored.
#include <simdjson.h>

#include "trace/file/line_reader.h"
#include "trace/request/json_value.h"
#include "trace/request/request_reader.h"

namespace cachalot::trace {
namespace {

namespace dom = simdjson::dom;

enum Field : unsigned { kTimestamp, kInputLength, kOutputLength, kHashIds, kFields };
constexpr const char* kFieldNames[kFields] = {"timestamp", "input_length", "output_length",
                                              "hash_ids"};

Status read_field(Field field, const dom::element& value, Request& request) {
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

class MooncakeParser final : public LineParser {
 public:
  explicit MooncakeParser(std::uint64_t block_tokens) : block_tokens_(block_tokens) {}

  Result<bool> parse(std::string_view line, Request& request) override {
    dom::element document;
    const auto error = parser_.parse(line.data(), line.size(), false).get(document);
    if (error != simdjson::SUCCESS) return not_json(error);
    dom::object object;
    if (document.get(object) != simdjson::SUCCESS) {
      return Error::make(Code::kBadInput, "%s is not an object", shown_value(document).c_str());
    }
    CACHALOT_TRY(read_fields(object, request));
    CACHALOT_TRY(check_number_of_ids("hash_ids", request.hash_ids.size(), "input_length",
                                     request.input_tokens, block_tokens_));
    return true;
  }

  TraceProperties properties() const override { return {}; }

 private:
  std::uint64_t block_tokens_;
  dom::parser parser_{LineReader::kMaxLineBytes};
};

}  // namespace

std::unique_ptr<LineParser> make_mooncake_parser(std::uint64_t block_tokens) {
  return std::make_unique<MooncakeParser>(block_tokens);
}

}  // namespace cachalot::trace
