// Azure's LLM inference traces: comma-separated, arrivals and lengths only.
//
//   TIMESTAMP,ContextTokens,GeneratedTokens
//   2023-11-16 18:17:03.9799600,4808,10
//   2024-05-10 00:00:00.009930+00:00,2162,5          (of the 2024 release)
//
// Times are UTC, and become milliseconds since 1970. There are no block ids.
//
// Source: github.com/Azure/AzurePublicDataset, AzureLLMInferenceDataset2023.md
#include <charconv>

#include "trace/request/csv_fields.h"
#include "trace/request/json_value.h"
#include "trace/request/request_reader.h"

namespace cachalot::trace {
namespace {

constexpr std::string_view kHeader = "TIMESTAMP,ContextTokens,GeneratedTokens";

// Days from 1970 to a day of the proleptic Gregorian calendar.
// Source: H. Hinnant, "chrono-Compatible Low-Level Date Algorithms".
std::int64_t days_from_civil(std::int64_t year, unsigned month, unsigned day) {
  year -= month <= 2 ? 1 : 0;
  const std::int64_t era = year / 400;
  const auto year_of_era = static_cast<unsigned>(year - era * 400);
  const unsigned day_of_year = (153 * (month > 2 ? month - 3 : month + 9) + 2) / 5 + day - 1;
  const unsigned day_of_era = year_of_era * 365 + year_of_era / 4 - year_of_era / 100 + day_of_year;
  return era * 146097 + static_cast<std::int64_t>(day_of_era) - 719468;
}

unsigned days_of(unsigned year, unsigned month) {
  const std::int64_t next =
      month == 12 ? days_from_civil(year + 1, 1, 1) : days_from_civil(year, month + 1, 1);
  return static_cast<unsigned>(next - days_from_civil(year, month, 1));
}

// Takes exactly `digits` digits and, unless it is 0, `behind` off the front.
bool take(std::string_view& text, std::size_t digits, char behind, unsigned& value) {
  if (text.size() < digits) return false;
  const auto [end, problem] = std::from_chars(text.data(), text.data() + digits, value);
  if (problem != std::errc() || end != text.data() + digits) return false;
  text.remove_prefix(digits);
  if (behind == 0) return true;
  if (text.empty() || text[0] != behind) return false;
  text.remove_prefix(1);
  return true;
}

// A point and 1 to 9 digits, in milliseconds; 0 without a point.
bool take_fraction(std::string_view& text, double& ms) {
  ms = 0;
  if (text.empty() || text[0] != '.') return true;
  text.remove_prefix(1);
  std::size_t digits = 0;
  while (digits < text.size() && text[digits] >= '0' && text[digits] <= '9') ++digits;
  if (digits == 0 || digits > 9) return false;
  double scale = 1000;
  std::uint64_t value = 0;
  for (std::size_t i = 0; i < digits; ++i) {
    value = value * 10 + static_cast<std::uint64_t>(text[i] - '0');
    scale /= 10;
  }
  ms = static_cast<double>(value) * scale;
  text.remove_prefix(digits);
  return true;
}

bool read_time(std::string_view text, double& time_ms) {
  unsigned year = 0, month = 0, day = 0, hour = 0, minute = 0, second = 0;
  double fraction_ms = 0;
  if (!take(text, 4, '-', year) || !take(text, 2, '-', month) || !take(text, 2, ' ', day) ||
      !take(text, 2, ':', hour) || !take(text, 2, ':', minute) || !take(text, 2, 0, second) ||
      !take_fraction(text, fraction_ms)) {
    return false;
  }
  if (!text.empty() && text != "Z" && text != "+00:00") return false;
  if (year < 1970 || month < 1 || month > 12 || day < 1 || day > days_of(year, month)) return false;
  if (hour > 23 || minute > 59 || second > 60) return false;
  const std::int64_t seconds =
      ((days_from_civil(year, month, day) * 24 + hour) * 60 + minute) * 60 + second;
  time_ms = static_cast<double>(seconds) * 1000 + fraction_ms;
  return true;
}

class AzureParser final : public LineParser {
 public:
  Result<bool> parse(std::string_view line, Request& request) override {
    if (line.ends_with('\r')) line.remove_suffix(1);
    if (line.starts_with("TIMESTAMP")) return read_header(line);
    std::string_view fields[3];
    if (!split_fields(line, fields)) {
      return Error::make(Code::kBadInput, "%s is not three fields between commas, expected %.*s",
                         shown_text(line).c_str(), static_cast<int>(kHeader.size()),
                         kHeader.data());
    }
    if (!read_time(fields[0], request.timestamp_ms)) {
      return Error::make(Code::kBadInput,
                         "TIMESTAMP: %s is no time, expected one like 2023-11-16 18:17:03.9799600",
                         shown_text(fields[0]).c_str());
    }
    CACHALOT_TRY_ASSIGN(request.input_tokens, csv_integer(fields[1], "ContextTokens"));
    CACHALOT_TRY_ASSIGN(request.output_tokens, csv_integer(fields[2], "GeneratedTokens"));
    request.hash_ids.clear();
    return true;
  }

  TraceProperties properties() const override {
    return {.format = TraceFormat::kAzure, .has_ids = false};
  }

 private:
  static Result<bool> read_header(std::string_view line) {
    if (line == kHeader) return false;
    return Error::make(Code::kBadInput, "header: %s, expected %.*s", shown_text(line).c_str(),
                       static_cast<int>(kHeader.size()), kHeader.data());
  }
};

}  // namespace

std::unique_ptr<LineParser> make_azure_parser() {
  return std::make_unique<AzureParser>();
}

}  // namespace cachalot::trace
