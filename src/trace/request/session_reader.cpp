// AIPerf's sessions: Mooncake's fields, a turn of a session a line, in the order of its turns.
//
//   {"session_id": "a", "timestamp": 0, "input_length": 1000, "output_length": 50, "hash_ids": [1, 2]}
//   {"session_id": "a", "delay": 2000, "input_length": 300, "output_length": 40, "hash_ids": [7]}
//
// Times are milliseconds. A first turn has a timestamp; a later one has either, and a delay counts from the turn
// before, whose answer is taken to need no time, as no file says it.
//
// Lengths and ids of a later turn are those of what is *new*: its prompt is the prompt before, the answer to it, and
// so many tokens more. Such a prompt's blocks begin elsewhere than those of the new text, so its ids are made here:
//
//   prompt 1   [1][2 |            blocks of B tokens; '|' ends the prompt
//   prompt 2   [1][x][y |         x: rest of 2, the answer, and the beginning of 7; y: the rest of 7
//   prompt 3   [1][x][z][w |
//
// 1. Whole blocks of the first turn keep their ids. All others have new ones, which no other session has: an answer
//    is taken to be like no other.
// 2. A whole block has the same id in all later prompts of the session. A last block that is partial has one that is
//    met once, but for the first turn's, which keeps what the file says.
//
// Other programs write the same fields with whole prompts in each line. The ids tell: the first id of a later turn is
// that of the session's first turn then, and another one in AIPerf's. A file where neither holds throughout is an
// error, unless the user named the format.
//
// All lines are held in memory, and requests come by time, equal times in the order of the file.
//
// Source: github.com/ai-dynamo/aiperf, docs/tutorials/agentic-code-generator.md, docs/benchmark-modes/trace-replay.md
#include <simdjson.h>

#include <algorithm>
#include <limits>
#include <numeric>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "trace/file/line_reader.h"
#include "trace/request/json_value.h"
#include "trace/request/mooncake_fields.h"
#include "trace/request/request_reader.h"

namespace cachalot::trace {
namespace {

namespace dom = simdjson::dom;

// Ids from here on are those of made blocks.
constexpr std::uint64_t kFirstMadeId = std::uint64_t{1} << 63;
// Of a prompt; as for synthetic prefixes.
constexpr std::uint64_t kMostPromptBlocks = std::uint64_t{1} << 24;

struct Turn {
  std::size_t session = 0;
  Request line;  // with the time of the turn; lengths and ids as the line has them
};

// What the lines of a file have in them. Turns are kept, and given out later.
class SessionParser final : public LineParser {
 public:
  explicit SessionParser(const ParserOptions& options)
      : block_tokens_(options.checked_tokens()), is_named_(options.is_named) {}

  Result<bool> parse(std::string_view line, Request& request) override {
    ++line_;
    CACHALOT_TRY_ASSIGN(const dom::object object, object_of_line(parser_, line));
    CACHALOT_TRY_ASSIGN(const unsigned seen, read_mooncake_fields(object, request));
    const bool has_time = (seen >> kTimestamp & 1u) != 0;
    CACHALOT_TRY(check_mooncake_fields(seen, 1u << kTimestamp));
    CACHALOT_TRY(check_number_of_ids("hash_ids", request.hash_ids.size(), "input_length",
                                     request.input_tokens, block_tokens_));
    CACHALOT_TRY_ASSIGN(const std::string session, session_of(object));
    const auto known = sessions_.find(session);
    const bool is_first = known == sessions_.end();
    if (!has_time) {
      if (is_first) {
        return Error::make(Code::kBadInput, "timestamp: missing in the first turn of session %s",
                           shown_text(session).c_str());
      }
      CACHALOT_TRY_ASSIGN(request.timestamp_ms, delayed_time(object, known->second.time_ms));
    }
    if (!is_first && request.timestamp_ms < known->second.time_ms) {
      return Error::make(Code::kBadInput,
                         "timestamp: %.3f, expected at least the %.3f of the turn before",
                         request.timestamp_ms, known->second.time_ms);
    }
    Session next = is_first ? Session{.index = sessions_.size()} : known->second;
    // A whole prompt, unless the user says otherwise: it does not grow the prompt before.
    if (!is_named_ && begins_as_first(request, next)) next.tokens = 0;
    CACHALOT_TRY(grow(request, next));
    note_ids(request, is_first, next);
    next.time_ms = request.timestamp_ms;
    turns_.push_back({next.index, std::exchange(request, {})});
    sessions_[session] = next;
    has_delays_ = has_delays_ || !has_time;
    return false;
  }

  TraceProperties properties() const override { return {.format = TraceFormat::kAiperf}; }

  std::vector<Turn>& turns() { return turns_; }
  std::size_t sessions() const { return sessions_.size(); }
  bool has_delays() const { return has_delays_; }
  // Turns of sessions that begin as the first one of theirs, and that do not.
  std::uint64_t like_first() const { return like_first_; }
  std::uint64_t unlike_first() const { return unlike_first_; }
  bool has_large_ids() const { return has_large_ids_; }

 private:
  struct Session {
    std::size_t index = 0;
    double time_ms = 0;
    std::uint64_t tokens = 0;  // of its prompts and answers so far
    bool has_ids = false;
    std::uint64_t first_id = 0;
  };

  // A line without a session is one of its own.
  Result<std::string> session_of(const dom::object& object) const {
    dom::element value;
    if (object["session_id"].get(value) != simdjson::SUCCESS) return "\n" + std::to_string(line_);
    std::string_view name;
    std::uint64_t number = 0;
    if (value.get(name) == simdjson::SUCCESS) return std::string(name);
    if (value.get(number) == simdjson::SUCCESS) return std::to_string(number);
    return Error::make(Code::kBadInput, "session_id: %s is neither a text nor an unsigned integer",
                       shown_value(value).c_str());
  }

  static Result<double> delayed_time(const dom::object& object, double before_ms) {
    dom::element value;
    if (object["delay"].get(value) != simdjson::SUCCESS) {
      return Error::make(Code::kBadInput,
                         "timestamp: missing, expected timestamp or delay in a turn of a session");
    }
    CACHALOT_TRY_ASSIGN(const double delay_ms, read_number(value, "delay"));
    return before_ms + delay_ms;
  }

  Status grow(const Request& request, Session& session) const {
    std::uint64_t prompt = 0;
    const bool is_over = __builtin_add_overflow(session.tokens, request.input_tokens, &prompt) ||
                         prompt / block_tokens_ >= kMostPromptBlocks ||
                         __builtin_add_overflow(prompt, request.output_tokens, &session.tokens);
    if (!is_over) return {};
    return Error::make(
        Code::kBadInput,
        "input_length: %llu more tokens of the session, expected at most 2^24 blocks "
        "of %llu",
        static_cast<unsigned long long>(request.input_tokens),
        static_cast<unsigned long long>(block_tokens_));
  }

  static bool begins_as_first(const Request& request, const Session& session) {
    return session.has_ids && !request.hash_ids.empty() &&
           request.hash_ids.front() == session.first_id;
  }

  void note_ids(const Request& request, bool is_first, Session& session) {
    for (const std::uint64_t id : request.hash_ids)
      has_large_ids_ = has_large_ids_ || id >= kFirstMadeId;
    if (request.hash_ids.empty()) return;
    if (is_first) {
      session.has_ids = true;
      session.first_id = request.hash_ids.front();
    } else if (session.has_ids) {
      ++(begins_as_first(request, session) ? like_first_ : unlike_first_);
    }
  }

  std::uint64_t block_tokens_;
  bool is_named_;
  std::uint64_t line_ = 0;
  std::unordered_map<std::string, Session> sessions_;
  std::vector<Turn> turns_;
  std::uint64_t like_first_ = 0, unlike_first_ = 0;
  bool has_delays_ = false, has_large_ids_ = false;
  dom::parser parser_{LineReader::kMaxLineBytes};
};

// The prompts of sessions, turn after turn.
class Prompts {
 public:
  Prompts(std::size_t sessions, std::uint64_t block_tokens)
      : contexts_(sessions), block_tokens_(block_tokens) {}

  // Makes the whole prompt of a turn that says what is new. Turns of a session come in their order.
  void complete(std::size_t session, Request& request) {
    Context& context = contexts_[session];
    const bool is_first = context.tokens == 0;
    const std::uint64_t prompt = context.tokens + request.input_tokens;
    const std::uint64_t whole = prompt / block_tokens_;
    if (is_first) {
      context.ids.assign(request.hash_ids.begin(),
                         request.hash_ids.begin() + static_cast<std::ptrdiff_t>(whole));
    } else {
      while (context.ids.size() < whole) context.ids.push_back(next_id_++);
      request.hash_ids = context.ids;
      if (prompt % block_tokens_ != 0) request.hash_ids.push_back(next_id_++);
    }
    request.input_tokens = prompt;
    context.tokens = prompt + request.output_tokens;
  }

 private:
  struct Context {
    std::uint64_t tokens = 0;        // of prompt and answer
    std::vector<std::uint64_t> ids;  // of whole blocks
  };

  std::vector<Context> contexts_;
  std::uint64_t block_tokens_;
  std::uint64_t next_id_ = kFirstMadeId;
};

class SessionReader final : public RequestReader {
 public:
  SessionReader(std::unique_ptr<ByteSource> source, const std::string& path,
                const ParserOptions& options, bool skip_bad_lines, bool is_array)
      : shown_path_(shown_path(path)), options_(options) {
    auto parser = std::make_unique<SessionParser>(options);
    parser_ = parser.get();
    lines_ = make_line_reader(std::move(source), path, std::move(parser), skip_bad_lines, is_array);
  }

  Result<bool> next(Request& request) override {
    if (!is_read_) {
      CACHALOT_TRY_ASSIGN(const bool is_request, lines_->next(request));
      (void)is_request;  // the parser keeps them all
      is_read_ = true;
      const Status told = tell_apart();
      if (!told) error_ = told.error();
      sort();
    }
    if (error_) return *error_;
    if (given_ == order_.size()) return false;
    Turn& turn = parser_->turns()[order_[given_++]];
    request = std::move(turn.line);
    if (are_increments_) prompts_.complete(turn.session, request);
    return true;
  }

  TraceProperties properties() const override {
    return {.format = TraceFormat::kAiperf, .ids_are_local = are_increments_};
  }
  std::uint64_t skipped_lines() const override { return lines_->skipped_lines(); }
  std::string assumption() const override {
    if (!parser_->has_delays()) return "";
    return shown_path_ +
           ": the trace does not say how long answers took: each delay counts from the beginning "
           "of "
           "the turn before";
  }

 private:
  Status tell_apart() {
    const std::uint64_t like = parser_->like_first(), unlike = parser_->unlike_first();
    const bool has_later_turns = parser_->turns().size() > parser_->sessions();
    if (!options_.is_named && has_later_turns && (like == 0) == (unlike == 0)) {
      return Error::make(
          Code::kBadInput,
          "%s: of its later turns %llu begin with the first hash_id of their session "
          "and %llu do not, expected --trace-format aiperf (they are what is new) or "
          "mooncake (whole prompts)",
          shown_path_.c_str(), static_cast<unsigned long long>(like),
          static_cast<unsigned long long>(unlike));
    }
    are_increments_ = options_.is_named || like == 0;
    if (!are_increments_ || !has_later_turns || !parser_->has_large_ids()) return {};
    return Error::make(
        Code::kBadInput,
        "%s: hash_ids of 2^63 and more, expected smaller ones in a trace of sessions",
        shown_path_.c_str());
  }

  void sort() {
    const std::vector<Turn>& turns = parser_->turns();
    order_.resize(turns.size());
    std::iota(order_.begin(), order_.end(), std::size_t{0});
    std::stable_sort(order_.begin(), order_.end(), [&](std::size_t a, std::size_t b) {
      return turns[a].line.timestamp_ms < turns[b].line.timestamp_ms;
    });
    prompts_ = Prompts(parser_->sessions(), options_.checked_tokens());
  }

  std::string shown_path_;
  ParserOptions options_;
  std::unique_ptr<RequestReader> lines_;
  SessionParser* parser_;  // of lines_
  bool is_read_ = false;
  bool are_increments_ = true;
  std::optional<Error> error_;
  std::vector<std::size_t> order_;
  std::size_t given_ = 0;
  Prompts prompts_{0, 1};
};

}  // namespace

std::unique_ptr<RequestReader> make_session_reader(std::unique_ptr<ByteSource> source,
                                                   const std::string& path,
                                                   const ParserOptions& options,
                                                   bool skip_bad_lines, bool is_array) {
  return std::make_unique<SessionReader>(std::move(source), path, options, skip_bad_lines,
                                         is_array);
}

}  // namespace cachalot::trace
