#include "values.h"

#include <algorithm>
#include <charconv>
#include <cinttypes>
#include <cstdio>
#include <iterator>
#include <string_view>

#include "base/byte_size.h"

namespace cachalot::apps {
namespace {

// Digits alone, a number of 64 bits.
bool is_whole(std::string_view text, std::uint64_t& value) {
  const char* const end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, value);
  return error == std::errc() && stop == end;
}

Result<std::uint64_t> parse_count(const std::string& flag, const std::string& text,
                                  const char* also) {
  std::uint64_t blocks = 0;
  // The largest value is how "inf" is written inside.
  if (is_whole(text, blocks) && blocks != ~std::uint64_t{0}) return blocks;
  return Error::make(Code::kInvalidArgument,
                     "%s: \"%.80s\" is not a number of blocks, expected one below 2^64 - 1%s",
                     flag.c_str(), text.c_str(), also);
}

// 1000000, not 1e+06: as a flag takes it.
std::string plain(double value) {
  char text[400];
  return {text, std::to_chars(text, text + sizeof text, value, std::chars_format::fixed).ptr};
}

}  // namespace

Validator number(std::uint64_t low, std::uint64_t high) {
  const std::string range = std::to_string(low) + " to " + std::to_string(high);
  return Validator(
      [low, high, range](std::string& text) -> std::string {
        std::uint64_t value = 0;
        if (!is_whole(text, value) || value < low || value > high) {
          return "\"" + text.substr(0, 60) + "\" is not a whole number from " + range;
        }
        text = std::to_string(value);
        return "";
      },
      high == ~std::uint64_t{0} ? "" : range, kNumberValidator);
}

Validator decimal(double low, double high) {
  const std::string range = plain(low) + " to " + plain(high);
  return Validator(
      [low, high, range](std::string& text) -> std::string {
        double value = 0;
        const char* const end = text.data() + text.size();
        const bool is_plain = text.find_first_not_of("0123456789.") == std::string::npos;
        const auto read = std::from_chars(text.data(), end, value);
        if (is_plain && read.ec == std::errc() && read.ptr == end && value >= low &&
            value <= high) {
          return "";
        }
        return "\"" + text.substr(0, 60) + "\" is not a number from " + range;
      },
      range, kNumberValidator);
}

Result<std::uint64_t> parse_bytes(const std::string& flag, const std::string& text) {
  return base::parse_byte_size(flag.c_str(), text);
}

std::string bytes_text(std::uint64_t bytes) {
  if (bytes == 1) return "1 byte";
  constexpr const char* kNames[] = {"bytes", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
  auto value = static_cast<double>(bytes);
  std::size_t unit = 0;
  for (; value >= 1024 && unit + 1 < std::size(kNames); ++unit) value /= 1024;
  const bool is_whole = value == static_cast<double>(static_cast<std::uint64_t>(value));
  char text[32];
  std::snprintf(text, sizeof text, is_whole ? "%.0f %s" : "%.2f %s", value, kNames[unit]);
  return text;
}

Result<std::uint64_t> parse_blocks(const std::string& flag, const std::string& text) {
  return parse_count(flag, text, "");
}

Result<std::uint64_t> parse_blocks_or_inf(const std::string& flag, const std::string& text) {
  if (text == "inf") return ~std::uint64_t{0};
  return parse_count(flag, text, ", or inf");
}

Status check_all_is_alone(const char* flag, std::span<const std::string> names) {
  if (names.size() == 1) return {};
  const auto other = std::find_if(names.begin(), names.end(),
                                  [](const std::string& name) { return name != "all"; });
  return Error::make(Code::kInvalidArgument,
                     "%s: \"%.60s\" with \"all\", expected all alone, or names without it", flag,
                     other == names.end() ? "all" : other->c_str());
}

Result<std::vector<std::string>> split_list(const std::string& flag,
                                            const std::vector<std::string>& texts) {
  std::vector<std::string> parts;
  for (const std::string& text : texts) {
    std::size_t from = 0, comma = 0;
    do {
      comma = text.find(',', from);
      parts.push_back(text.substr(from, comma == std::string::npos ? comma : comma - from));
      if (parts.back().empty()) {
        return Error::make(Code::kInvalidArgument,
                           "%s: \"%.80s\" has an empty part, expected values between commas",
                           flag.c_str(), text.c_str());
      }
      from = comma + 1;
    } while (comma != std::string::npos);
  }
  return parts;
}

Status check_differ(const char* flag, std::span<const std::string> values) {
  for (std::size_t i = 0; i < values.size(); ++i) {
    if (std::find(values.begin(), values.begin() + static_cast<std::ptrdiff_t>(i), values[i]) ==
        values.begin() + static_cast<std::ptrdiff_t>(i)) {
      continue;
    }
    return Error::make(Code::kInvalidArgument, "%s: \"%.80s\" twice, expected it once", flag,
                       values[i].c_str());
  }
  return {};
}

}  // namespace cachalot::apps
