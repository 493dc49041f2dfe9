#include "values.h"

#include <charconv>
#include <cinttypes>
#include <cstdio>
#include <iterator>
#include <string_view>

namespace cachalot::apps {
namespace {

constexpr std::uint64_t kMaxBytes = 0x7fffffffffffffffu;

struct Unit {
  const char* name;
  std::uint64_t bytes;
};
constexpr Unit kUnits[] = {
    {"", 1},
    {"B", 1},
    {"KiB", std::uint64_t{1} << 10},
    {"MiB", std::uint64_t{1} << 20},
    {"GiB", std::uint64_t{1} << 30},
    {"TiB", std::uint64_t{1} << 40},
    {"KB", 1'000},
    {"MB", 1'000'000},
    {"GB", 1'000'000'000},
    {"TB", 1'000'000'000'000},
};

bool is_digit(char c) {
  return c >= '0' && c <= '9';
}

// A decimal number: digits without the point, and how many of them stood behind it.
struct Decimal {
  std::uint64_t digits = 0;
  std::uint32_t behind_point = 0;
};

// Reads a number off the front of `text`. False if there is none, or more digits than 64 bits hold.
bool take_decimal(std::string_view& text, Decimal& number) {
  std::size_t at = 0;
  bool any = false, point = false;
  for (; at < text.size(); ++at) {
    if (text[at] == '.' && !point) {
      point = true;
      continue;
    }
    if (!is_digit(text[at])) break;
    any = true;
    if (__builtin_mul_overflow(number.digits, std::uint64_t{10}, &number.digits) ||
        __builtin_add_overflow(number.digits, static_cast<std::uint64_t>(text[at] - '0'),
                               &number.digits)) {
      return false;
    }
    number.behind_point += point ? 1 : 0;
  }
  text.remove_prefix(at);
  return any;
}

const Unit* find_unit(std::string_view name) {
  for (const Unit& unit : kUnits) {
    if (name == unit.name) return &unit;
  }
  return nullptr;
}

// number * unit, cut down to whole bytes. False: more than kMaxBytes.
bool scale(const Decimal& number, const Unit& unit, std::uint64_t& bytes) {
  unsigned __int128 product = static_cast<unsigned __int128>(number.digits) * unit.bytes;
  for (std::uint32_t i = 0; i < number.behind_point; ++i) product /= 10;
  bytes = static_cast<std::uint64_t>(product);
  return product <= kMaxBytes;
}

// Digits alone, a number of 64 bits.
bool is_whole(std::string_view text, std::uint64_t& value) {
  Decimal number;
  if (text.find('.') != std::string_view::npos || !take_decimal(text, number)) return false;
  value = number.digits;
  return text.empty();
}

Result<std::uint64_t> parse_count(const std::string& flag, const std::string& text,
                                  const char* also) {
  std::uint64_t blocks = 0;
  // The largest value is how "inf" is written inside.
  if (is_whole(text, blocks) && blocks != ~std::uint64_t{0}) return blocks;
  return Error::make(Code::kInvalidArgument,
                     "%s: \"%.80s\" is no number of blocks, expected one below 2^64 - 1%s",
                     flag.c_str(), text.c_str(), also);
}

}  // namespace

CLI::Validator number(std::uint64_t low, std::uint64_t high) {
  const std::string range = std::to_string(low) + " to " + std::to_string(high);
  return CLI::Validator(
      [low, high, range](std::string& text) -> std::string {
        std::uint64_t value = 0;
        if (!is_whole(text, value) || value < low || value > high) {
          return "\"" + text.substr(0, 60) + "\" is not a whole number from " + range;
        }
        text = std::to_string(value);
        return "";
      },
      high == ~std::uint64_t{0} ? "" : range);
}

CLI::Validator decimal(double low, double high) {
  char range[80];
  std::snprintf(range, sizeof range, "%g to %g", low, high);
  return CLI::Validator(
      [low, high, range = std::string(range)](std::string& text) -> std::string {
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
      range);
}

Result<std::uint64_t> parse_bytes(const std::string& flag, const std::string& text) {
  std::string_view rest = text;
  Decimal number;
  const bool is_number = take_decimal(rest, number);
  const Unit* const unit = is_number ? find_unit(rest) : nullptr;
  // Digits that overflow 64 bits leave a digit in front.
  const bool is_huge = !is_number && !rest.empty() && is_digit(text[0]);
  if (!is_huge && unit == nullptr) {
    return Error::make(Code::kInvalidArgument,
                       "%s: \"%.80s\" is no size, expected bytes like 65536, 64KiB or 1.5GB",
                       flag.c_str(), text.c_str());
  }
  if (!is_huge && unit->bytes == 1 && number.behind_point != 0) {
    return Error::make(Code::kInvalidArgument,
                       "%s: \"%.80s\" is no whole number of bytes, expected one like 65536",
                       flag.c_str(), text.c_str());
  }
  std::uint64_t bytes = 0;
  if (is_huge || !scale(number, *unit, bytes)) {
    return Error::make(Code::kInvalidArgument,
                       "%s: %.80s is too large, expected less than 2^63 bytes", flag.c_str(),
                       text.c_str());
  }
  return bytes;
}

std::string bytes_text(std::uint64_t bytes) {
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

}  // namespace cachalot::apps
