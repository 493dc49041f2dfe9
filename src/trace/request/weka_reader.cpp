// Sessions of WEKA's kv-cache-tester: one JSON object a file, an agent's requests in it.
//
//   {"id": "trace_0010", "block_size": 64, "hash_id_scope": "local", "requests": [
//      {"t": 0.0, "type": "n", "in": 17209, "out": 275, "hash_ids": [1, 2, …]},
//      {"t": 100.65, "type": "subagent", "duration_ms": 91243, "requests": [{"t": 0.0, …}, …]}, …]}
//
// Times are seconds. A sub-agent's t is when it ended: it began at t - duration_ms / 1000, and the times
// of its own requests count from there. There is an id for each whole block. Requests of sub-agents are
// put among the others by their times; equal times keep the order of the file.
//
// Source: github.com/callanjfox/kv-cache-tester, and sessions from it.
#include <simdjson.h>

#include <algorithm>
#include <optional>
#include <utility>
#include <vector>

#include "trace/file/line_reader.h"
#include "trace/request/json_value.h"
#include "trace/request/request_reader.h"

namespace cachalot::trace {
namespace {

namespace dom = simdjson::dom;

Result<dom::array> array_of(const dom::object& object, const char* name) {
  CACHALOT_TRY_ASSIGN(const dom::element value, field_of(object, "", name));
  dom::array array;
  if (value.get(array) == simdjson::SUCCESS) return array;
  return Error::make(Code::kBadInput, "%s: %s is not an array", name, shown_value(value).c_str());
}

// A session's requests, as they are collected.
class Session {
 public:
  explicit Session(bool skip_bad_requests) : skip_bad_requests_(skip_bad_requests) {}

  Status read(const dom::element& document) {
    dom::object object;
    if (document.get(object) != simdjson::SUCCESS) {
      return Error::make(Code::kBadInput, "%s is not an object", shown_value(document).c_str());
    }
    CACHALOT_TRY_ASSIGN(const dom::element block_size, field_of(object, "", "block_size"));
    CACHALOT_TRY_ASSIGN(block_tokens_, read_integer(block_size, "block_size"));
    if (block_tokens_ == 0) {
      return Error::make(Code::kBadInput, "block_size: 0, expected at least 1 token");
    }
    CACHALOT_TRY(read_scope(object));
    CACHALOT_TRY_ASSIGN(const dom::array requests, array_of(object, "requests"));
    CACHALOT_TRY(add_all(requests, 0, ""));
    std::stable_sort(requests_.begin(), requests_.end(), [](const Request& a, const Request& b) {
      return a.timestamp_ms < b.timestamp_ms;
    });
    return {};
  }

  std::uint64_t block_tokens() const { return block_tokens_; }
  bool ids_are_local() const { return ids_are_local_; }
  std::uint64_t bad_requests() const { return bad_requests_; }
  std::vector<Request>& requests() { return requests_; }

 private:
  Status read_scope(const dom::object& object) {
    std::string_view scope = "local";
    dom::element value;
    if (object["hash_id_scope"].get(value) != simdjson::SUCCESS) return {};
    if (value.get(scope) != simdjson::SUCCESS || (scope != "local" && scope != "global")) {
      return Error::make(Code::kBadInput, "hash_id_scope: %s, expected \"local\" or \"global\"",
                         shown_value(value).c_str());
    }
    ids_are_local_ = scope == "local";
    return {};
  }

  // `start_ms` is when the session or sub-agent began.
  Status add_all(const dom::array& requests, double start_ms, const std::string& within) {
    std::size_t index = 0;
    for (const dom::element& item : requests) {
      const std::string name = within + "requests[" + std::to_string(index++) + "]";
      const Status added = add(item, start_ms, name);
      if (added) continue;
      if (!skip_bad_requests_) return added;
      ++bad_requests_;
    }
    return {};
  }

  Status add(const dom::element& item, double start_ms, const std::string& name) {
    dom::object object;
    if (item.get(object) != simdjson::SUCCESS) {
      return Error::make(Code::kBadInput, "%s: %s is not an object", name.c_str(),
                         shown_value(item).c_str());
    }
    std::string_view type;
    if (object["type"].get(type) == simdjson::SUCCESS && type == "subagent") {
      return add_subagent(object, start_ms, name);
    }
    Request request;
    const Status read = read_request(object, start_ms, request);
    if (!read) return Error::make(Code::kBadInput, "%s.%s", name.c_str(), read.error().message);
    requests_.push_back(std::move(request));
    return {};
  }

  Status read_request(const dom::object& object, double start_ms, Request& request) const {
    CACHALOT_TRY_ASSIGN(const dom::element time, field_of(object, "", "t"));
    CACHALOT_TRY_ASSIGN(const double seconds, read_number(time, "t"));
    request.timestamp_ms = start_ms + seconds * kMsPerSecond;
    CACHALOT_TRY_ASSIGN(const dom::element in, field_of(object, "", "in"));
    CACHALOT_TRY_ASSIGN(request.input_tokens, read_integer(in, "in"));
    CACHALOT_TRY_ASSIGN(const dom::element out, field_of(object, "", "out"));
    CACHALOT_TRY_ASSIGN(request.output_tokens, read_integer(out, "out"));
    CACHALOT_TRY_ASSIGN(const dom::element ids, field_of(object, "", "hash_ids"));
    CACHALOT_TRY(read_ids(ids, "hash_ids", request.hash_ids));
    return check_number_of_ids("hash_ids", request.hash_ids.size(), "in", request.input_tokens,
                               block_tokens_);
  }

  Status add_subagent(const dom::object& object, double start_ms, const std::string& name) {
    double began_ms = 0;
    const Result<dom::array> requests = read_subagent(object, start_ms, began_ms);
    if (requests) return add_all(*requests, began_ms, name + ".");
    return Error::make(Code::kBadInput, "%s.%s", name.c_str(), requests.error().message);
  }

  static Result<dom::array> read_subagent(const dom::object& object, double start_ms,
                                          double& began_ms) {
    CACHALOT_TRY_ASSIGN(const dom::element time, field_of(object, "", "t"));
    CACHALOT_TRY_ASSIGN(const double seconds, read_number(time, "t"));
    CACHALOT_TRY_ASSIGN(const dom::element lasted, field_of(object, "", "duration_ms"));
    CACHALOT_TRY_ASSIGN(const double lasted_ms, read_number(lasted, "duration_ms"));
    // Rounding may put it a little before its parent.
    began_ms = std::max(start_ms, start_ms + seconds * kMsPerSecond - lasted_ms);
    return array_of(object, "requests");
  }

  bool skip_bad_requests_;
  bool ids_are_local_ = true;
  std::uint64_t block_tokens_ = 0;
  std::uint64_t bad_requests_ = 0;
  std::vector<Request> requests_;
};

class WekaReader final : public RequestReader {
 public:
  WekaReader(std::unique_ptr<ByteSource> source, const std::string& path, bool skip_bad_requests)
      : source_(std::move(source)), shown_path_(shown_path(path)), session_(skip_bad_requests) {}

  Result<bool> next(Request& request) override {
    if (source_ != nullptr) {
      const Status read = read_session();
      source_.reset();
      if (!read) error_ = read.error();
    }
    if (error_) return *error_;
    if (given_ == session_.requests().size()) return false;
    request = std::move(session_.requests()[given_++]);
    return true;
  }

  TraceProperties properties() const override {
    return {.format = TraceFormat::kWeka,
            .block_tokens = session_.block_tokens(),
            .ids_are_local = session_.ids_are_local()};
  }
  std::uint64_t skipped_lines() const override { return session_.bad_requests(); }

 private:
  Status read_session() {
    CACHALOT_TRY_ASSIGN(const std::string text, read_file());
    dom::parser parser{2 * kMaxWekaBytes};
    dom::element document;
    const auto error = parser.parse(text).get(document);
    if (error != simdjson::SUCCESS) {
      return Error::make(Code::kBadInput, "%s: %s", shown_path_.c_str(), not_json(error).message);
    }
    const Status read = session_.read(document);
    if (read) return {};
    return Error::make(Code::kBadInput, "%s: %s", shown_path_.c_str(), read.error().message);
  }

  Result<std::string> read_file() {
    constexpr std::size_t kStepBytes = std::size_t{1} << 20;
    std::string text;
    for (;;) {
      const std::size_t begin = text.size();
      text.resize(begin + kStepBytes);
      CACHALOT_TRY_ASSIGN(const std::size_t bytes,
                          source_->read(std::span(text).subspan(begin, kStepBytes)));
      text.resize(begin + bytes);
      if (bytes == 0) return text;
      if (text.size() > kMaxWekaBytes) {
        return Error::make(Code::kBadInput, "%s: longer than %zu MiB, expected one session",
                           shown_path_.c_str(), kMaxWekaBytes >> 20);
      }
    }
  }

  std::unique_ptr<ByteSource> source_;
  std::string shown_path_;
  Session session_;
  std::optional<Error> error_;
  std::size_t given_ = 0;
};

}  // namespace

std::unique_ptr<RequestReader> make_weka_reader(std::unique_ptr<ByteSource> source,
                                                const std::string& path, bool skip_bad_lines) {
  return std::make_unique<WekaReader>(std::move(source), path, skip_bad_lines);
}

}  // namespace cachalot::trace
