// BurstGPT: comma-separated, arrivals and lengths of an Azure OpenAI service; version 2 names sessions.
//
//   Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type
//   5,ChatGPT,472,18,490,Conversation log
//
//   Timestamp,Session ID,Elapsed time,Model,Request tokens,Response tokens,Total tokens,Log Type
//   5,3f1c2d0e-0000-4000-8000-000000000001,2.41,ChatGPT,472,18,490,Conversation log
//
// Times are seconds from the first day's midnight. Requests that failed have 0 response tokens, or 0 of both:
// they arrived, and are read. There are no block ids.
//
// Source: github.com/HPMLL/BurstGPT, README.md; Wang et al., arXiv 2401.17644
#include <charconv>
#include <cmath>
#include <cstddef>

#include "trace/request/csv_fields.h"
#include "trace/request/json_value.h"
#include "trace/request/request_reader.h"

namespace cachalot::trace {
namespace {

constexpr std::string_view kHeaders[] = {
    "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type",
    "Timestamp,Session ID,Elapsed time,Model,Request tokens,Response tokens,Total tokens,Log Type",
};
constexpr std::size_t kColumns[] = {6, 8};
constexpr std::size_t kMostColumns = 8;

class BurstGptParser final : public LineParser {
 public:
  Result<bool> parse(std::string_view line, Request& request) override {
    if (line.ends_with('\r')) line.remove_suffix(1);
    if (columns_ == 0 || line.starts_with("Timestamp")) return read_header(line);
    std::string_view fields[kMostColumns];
    const std::span<std::string_view> row(fields, columns_);
    if (!split_fields(line, row)) {
      return Error::make(Code::kBadInput, "%s is not %zu fields between commas",
                         shown_text(line).c_str(), columns_);
    }
    CACHALOT_TRY_ASSIGN(request.timestamp_ms, read_seconds(fields[0]));
    const std::span<std::string_view> tokens = row.subspan(columns_ - 4, 3);
    CACHALOT_TRY_ASSIGN(request.input_tokens, csv_integer(tokens[0], "Request tokens"));
    CACHALOT_TRY_ASSIGN(request.output_tokens, csv_integer(tokens[1], "Response tokens"));
    CACHALOT_TRY_ASSIGN(const std::uint64_t total, csv_integer(tokens[2], "Total tokens"));
    if (total < request.input_tokens || total - request.input_tokens != request.output_tokens) {
      return Error::make(Code::kBadInput, "Total tokens: %llu, expected the sum of %llu and %llu",
                         static_cast<unsigned long long>(total),
                         static_cast<unsigned long long>(request.input_tokens),
                         static_cast<unsigned long long>(request.output_tokens));
    }
    request.hash_ids.clear();
    return true;
  }

  TraceProperties properties() const override {
    return {.format = TraceFormat::kBurstGpt, .has_ids = false};
  }

 private:
  // Without it columns have no names, and a file of another kind would be read.
  Result<bool> read_header(std::string_view line) {
    for (std::size_t i = 0; i < std::size(kHeaders); ++i) {
      if (line != kHeaders[i]) continue;
      columns_ = kColumns[i];
      return false;
    }
    return Error::make(
        Code::kBadInput,
        "header: %s, expected the 6 or 8 columns of BurstGPT: Timestamp,[Session "
        "ID,Elapsed time,]Model,Request tokens,Response tokens,Total tokens,Log Type",
        shown_text(line).c_str());
  }

  static Result<double> read_seconds(std::string_view text) {
    double seconds = 0;
    const auto [end, problem] = std::from_chars(text.data(), text.data() + text.size(), seconds);
    if (problem == std::errc() && end == text.data() + text.size() && seconds >= 0 &&
        std::isfinite(seconds)) {
      return seconds * kMsPerSecond;
    }
    return Error::make(Code::kBadInput, "Timestamp: %s is not a number of seconds",
                       shown_text(text).c_str());
  }

  std::size_t columns_ = 0;  // 0: no header yet
};

}  // namespace

std::unique_ptr<LineParser> make_burstgpt_parser() {
  return std::make_unique<BurstGptParser>();
}

}  // namespace cachalot::trace
