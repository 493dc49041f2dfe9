// Alibaba's Bailian traces of Qwen services: Mooncake's fields, a request a line, with another meaning.
//
//   {"chat_id": 159, "parent_chat_id": 55, "timestamp": 61.114, "input_length": 521, "output_length": 132,
//    "type": "text", "turn": 2, "hash_ids": [1089, 1090, 6326]}
//
// Times are seconds, blocks have 16 tokens, and an id stands for the tokens of its block alone, whatever is
// before it. The parser numbers prefixes: (the number of the prefix before, id) gets the next number when it is
// met first. So the ids of a request stand for prefixes, as everywhere else.
//
// Source: github.com/alibaba-edu/qwen-bailian-usagetraces-anon, README.md; Wang et al., ATC 2025 (arXiv 2506.02634)
#include <simdjson.h>

#include "base/pair_table.h"
#include "trace/file/line_reader.h"
#include "trace/request/json_value.h"
#include "trace/request/mooncake_fields.h"
#include "trace/request/request_reader.h"

namespace cachalot::trace {
namespace {

namespace dom = simdjson::dom;

constexpr std::uint64_t kBlockTokens = 16;

class BailianParser final : public LineParser {
 public:
  explicit BailianParser(std::uint64_t block_tokens)
      : block_tokens_(block_tokens != 0 ? block_tokens : kBlockTokens) {}

  Result<bool> parse(std::string_view line, Request& request) override {
    CACHALOT_TRY_ASSIGN(const dom::object object, object_of_line(parser_, line));
    // Without it the line is Mooncake's, in milliseconds.
    CACHALOT_TRY_ASSIGN(const dom::element chat, field_of(object, "", "chat_id"));
    CACHALOT_TRY(read_integer(chat, "chat_id"));
    CACHALOT_TRY_ASSIGN(const unsigned seen, read_mooncake_fields(object, request));
    CACHALOT_TRY(check_mooncake_fields(seen));
    CACHALOT_TRY(check_number_of_ids("hash_ids", request.hash_ids.size(), "input_length",
                                     request.input_tokens, block_tokens_));
    request.timestamp_ms *= kMsPerSecond;
    std::uint64_t parent = 0;  // number + 1
    for (std::uint64_t& id : request.hash_ids) {
      id = prefixes_.find_or_add({parent, id}).number;
      parent = id + 1;
    }
    return true;
  }

  TraceProperties properties() const override {
    return {.format = TraceFormat::kBailian, .block_tokens = block_tokens_, .ids_are_local = true};
  }

 private:
  std::uint64_t block_tokens_;
  PairTable prefixes_;
  dom::parser parser_{LineReader::kMaxLineBytes};
};

}  // namespace

std::unique_ptr<LineParser> make_bailian_parser(const ParserOptions& options) {
  return std::make_unique<BailianParser>(options.block_tokens);
}

}  // namespace cachalot::trace
