// NVIDIA Dynamo's request trace, schema dynamo.request.trace.v1: an event a line, bare or inside
// {"timestamp": …, "event": {…}} as its recorder wraps it.
//
//   {"schema": "dynamo.request.trace.v1", "event_type": "request_end", "event_time_unix_ms": 1777312801000,
//    "request": {"request_received_ms": 1777312800000, "output_tokens": 16,
//      "replay": {"trace_block_size": 64, "input_length": 128, "input_sequence_hashes": [14879255164371896291, 2]}}}
//
// The hashes are rolling ones, each standing for its prefix, one for each whole or begun block. Events
// of tools and payloads are no requests. Lines are written when requests end, so their times of arrival
// are not sorted.
//
// Source: github.com/ai-dynamo/dynamo, lib/data-gen/src/request_trace/load.rs and the documentation's
// "Request Replay Tracing". Read for the form.
#include <simdjson.h>

#include "trace/file/line_reader.h"
#include "trace/request/json_value.h"
#include "trace/request/request_reader.h"

namespace cachalot::trace {
namespace {

namespace dom = simdjson::dom;

constexpr std::string_view kSchema = "dynamo.request.trace.v1";

Result<dom::object> object_of(const dom::object& object, const char* within,
                              std::string_view name) {
  CACHALOT_TRY_ASSIGN(const dom::element value, field_of(object, within, name));
  dom::object inner;
  if (value.get(inner) == simdjson::SUCCESS) return inner;
  return Error::make(Code::kBadInput, "%s%s: %s is not an object", within,
                     std::string(name).c_str(), shown_value(value).c_str());
}

Result<std::uint64_t> integer_of(const dom::object& object, const char* within, const char* name) {
  CACHALOT_TRY_ASSIGN(const dom::element value, field_of(object, within, name));
  return read_integer(value, std::string(within) + name);
}

Result<std::string_view> text_of(const dom::object& object, const char* name) {
  CACHALOT_TRY_ASSIGN(const dom::element value, field_of(object, "", name));
  std::string_view text;
  if (value.get(text) == simdjson::SUCCESS) return text;
  return Error::make(Code::kBadInput, "%s: %s is not a text", name, shown_value(value).c_str());
}

class DynamoParser final : public LineParser {
 public:
  Result<bool> parse(std::string_view line, Request& request) override {
    CACHALOT_TRY_ASSIGN(dom::object event, object_of_line(parser_, line));
    dom::object wrapped;
    if (event["event"].get(wrapped) == simdjson::SUCCESS) event = wrapped;
    CACHALOT_TRY_ASSIGN(const std::string_view schema, text_of(event, "schema"));
    if (schema != kSchema) {
      return Error::make(Code::kBadInput, "schema: %s, expected \"%.*s\"",
                         shown_text(schema).c_str(), static_cast<int>(kSchema.size()),
                         kSchema.data());
    }
    CACHALOT_TRY_ASSIGN(const std::string_view type, text_of(event, "event_type"));
    if (type == "request_payload" || type.starts_with("tool_")) return false;
    if (type != "request_end") {
      return Error::make(Code::kBadInput,
                         "event_type: %s, expected request_end, request_payload or tool_…",
                         shown_text(type).c_str());
    }
    CACHALOT_TRY(read_request(event, request));
    return true;
  }

  TraceProperties properties() const override {
    return {.format = TraceFormat::kDynamo, .block_tokens = block_tokens_};
  }

 private:
  Status read_request(const dom::object& event, Request& request) {
    CACHALOT_TRY_ASSIGN(const dom::object inner, object_of(event, "", "request"));
    CACHALOT_TRY_ASSIGN(const std::uint64_t received,
                        integer_of(inner, "request.", "request_received_ms"));
    request.timestamp_ms = static_cast<double>(received);
    CACHALOT_TRY_ASSIGN(request.output_tokens, integer_of(inner, "request.", "output_tokens"));
    CACHALOT_TRY_ASSIGN(const dom::object replay, object_of(inner, "request.", "replay"));
    CACHALOT_TRY_ASSIGN(request.input_tokens,
                        integer_of(replay, "request.replay.", "input_length"));
    constexpr const char* kHashes = "input_sequence_hashes";
    CACHALOT_TRY_ASSIGN(const dom::element ids, field_of(replay, "request.replay.", kHashes));
    CACHALOT_TRY(read_ids(ids, std::string("request.replay.") + kHashes, request.hash_ids));
    CACHALOT_TRY_ASSIGN(const std::uint64_t block_tokens,
                        integer_of(replay, "request.replay.", "trace_block_size"));
    CACHALOT_TRY(check_block_tokens(block_tokens));
    CACHALOT_TRY(check_number_of_ids(kHashes, request.hash_ids.size(), "input_length",
                                     request.input_tokens, block_tokens));
    block_tokens_ = block_tokens;
    return {};
  }

  Status check_block_tokens(std::uint64_t block_tokens) const {
    if (block_tokens == 0) {
      return Error::make(Code::kBadInput, "trace_block_size: 0, expected at least 1 token");
    }
    if (block_tokens_ == 0 || block_tokens == block_tokens_) return {};
    return Error::make(Code::kBadInput, "trace_block_size: %llu, expected %llu as in front of it",
                       static_cast<unsigned long long>(block_tokens),
                       static_cast<unsigned long long>(block_tokens_));
  }

  std::uint64_t block_tokens_ = 0;
  dom::parser parser_{LineReader::kMaxLineBytes};
};

}  // namespace

std::unique_ptr<LineParser> make_dynamo_parser() {
  return std::make_unique<DynamoParser>();
}

}  // namespace cachalot::trace
