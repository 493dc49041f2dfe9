// Traces of the optimizer of Alibaba's Tair KVCache: a turn of a dialogue a line.
//
//   {"instance_id": "a", "trace_id": "t", "timestamp_us": 1704081605123456, "tokens": [], "keys": [2, 3],
//    "query_type": "prefix_match", …, "input_len": 32, "output_len": 0, "total_keys": [2, 3]}
//
// Times are microseconds; `keys` are signed 64-bit hashes of the prompt's prefixes, one for each block. Lines of
// single reads and writes of the cache say no length, and are errors. So is a second instance: equal keys of two
// instances are different blocks.
//
// Source: github.com/alibaba/tair-kvcache, kv_cache_manager/optimizer/trace_converter/optimizer_schema_trace.h.
// Read for the form.
#include <simdjson.h>

#include <string>

#include "trace/file/line_reader.h"
#include "trace/request/json_value.h"
#include "trace/request/request_reader.h"

namespace cachalot::trace {
namespace {

namespace dom = simdjson::dom;

constexpr double kMsPerUs = 1e-3;

Result<std::uint64_t> whole_number(const dom::object& object, const char* name) {
  CACHALOT_TRY_ASSIGN(const dom::element value, field_of(object, "", name));
  return read_integer(value, name);
}

// Negative ones as their bits say.
Status read_keys(const dom::object& object, std::vector<std::uint64_t>& ids) {
  CACHALOT_TRY_ASSIGN(const dom::element value, field_of(object, "", "keys"));
  dom::array array;
  if (value.get(array) != simdjson::SUCCESS) {
    return Error::make(Code::kBadInput, "keys: %s is not an array", shown_value(value).c_str());
  }
  ids.clear();
  for (const dom::element& item : array) {
    std::int64_t key = 0;
    std::uint64_t large_key = 0;
    if (item.get(key) == simdjson::SUCCESS) {
      ids.push_back(static_cast<std::uint64_t>(key));
    } else if (item.get(large_key) == simdjson::SUCCESS) {
      ids.push_back(large_key);
    } else {
      return Error::make(Code::kBadInput, "keys[%zu]: %s is not a 64-bit integer", ids.size(),
                         shown_value(item).c_str());
    }
  }
  return {};
}

class TairParser final : public LineParser {
 public:
  explicit TairParser(std::uint64_t block_tokens) : block_tokens_(block_tokens) {}

  Result<bool> parse(std::string_view line, Request& request) override {
    CACHALOT_TRY_ASSIGN(const dom::object object, object_of_line(parser_, line));
    CACHALOT_TRY_ASSIGN(const std::uint64_t time_us, whole_number(object, "timestamp_us"));
    request.timestamp_ms = static_cast<double>(time_us) * kMsPerUs;
    if (object["input_len"].error() == simdjson::NO_SUCH_FIELD) {
      return Error::make(Code::kBadInput,
                         "input_len: missing, expected lines of whole turns: single reads and "
                         "writes of the cache do not tell the lengths of requests");
    }
    CACHALOT_TRY_ASSIGN(request.input_tokens, whole_number(object, "input_len"));
    CACHALOT_TRY_ASSIGN(request.output_tokens, whole_number(object, "output_len"));
    CACHALOT_TRY(read_keys(object, request.hash_ids));
    CACHALOT_TRY(check_number_of_ids("keys", request.hash_ids.size(), "input_len",
                                     request.input_tokens, block_tokens_));
    CACHALOT_TRY(check_instance(object));
    return true;
  }

  TraceProperties properties() const override { return {.format = TraceFormat::kTair}; }

 private:
  Status check_instance(const dom::object& object) {
    CACHALOT_TRY_ASSIGN(const dom::element value, field_of(object, "", "instance_id"));
    std::string_view instance;
    if (value.get(instance) != simdjson::SUCCESS) {
      return Error::make(Code::kBadInput, "instance_id: %s is not a text",
                         shown_value(value).c_str());
    }
    if (!has_instance_) instance_ = instance;
    has_instance_ = true;
    if (instance == instance_) return {};
    return Error::make(Code::kBadInput,
                       "instance_id: %s, expected %s as before: one instance a file",
                       shown_text(instance).c_str(), shown_text(instance_).c_str());
  }

  std::uint64_t block_tokens_;
  bool has_instance_ = false;
  std::string instance_;
  dom::parser parser_{LineReader::kMaxLineBytes};
};

}  // namespace

std::unique_ptr<LineParser> make_tair_parser(const ParserOptions& options) {
  return std::make_unique<TairParser>(options.checked_tokens());
}

}  // namespace cachalot::trace
