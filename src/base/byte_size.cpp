#include "base/byte_size.h"

#include <string>

namespace cachalot::base {
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
    {"PiB", std::uint64_t{1} << 50},
    {"EiB", std::uint64_t{1} << 60},
    {"KB", 1'000},
    {"MB", 1'000'000},
    {"GB", 1'000'000'000},
    {"TB", 1'000'000'000'000},
    {"PB", 1'000'000'000'000'000},
    {"EB", 1'000'000'000'000'000'000},
};

bool is_digit(char c) {
  return c >= '0' && c <= '9';
}

// A decimal number: digits without the point, and how many of them stood behind it.
struct Decimal {
  std::uint64_t digits = 0;
  std::uint32_t behind_point = 0;
};

constexpr std::uint64_t kMostDigits = (~std::uint64_t{0} - 9) / 10;  // one more fits

// Reads a number off the front of `text`. False if there is none, or more digits before the point than 64 bits hold.
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
    // Digits that 64 bits do not hold change nothing of a size that is cut down to whole bytes.
    constexpr std::uint32_t kMostBehindPoint = 18;
    if (point && (number.behind_point == kMostBehindPoint || number.digits > kMostDigits)) continue;
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

}  // namespace

Result<std::uint64_t> parse_byte_size(const char* name, std::string_view text) {
  std::string_view rest = text;
  const std::string shown(text.substr(0, 80));
  Decimal number;
  const bool is_number = take_decimal(rest, number);
  const Unit* const unit = is_number ? find_unit(rest) : nullptr;
  // Digits that overflow 64 bits leave a digit in front.
  const bool is_huge = !is_number && !rest.empty() && is_digit(text[0]);
  if (!is_huge && unit == nullptr) {
    return Error::make(Code::kInvalidArgument,
                       "%s: \"%s\" is no size, expected bytes like 65536, 64KiB or 1.5GB", name,
                       shown.c_str());
  }
  if (!is_huge && unit->bytes == 1 && number.behind_point != 0) {
    return Error::make(Code::kInvalidArgument,
                       "%s: \"%s\" is no whole number of bytes, expected one like 65536", name,
                       shown.c_str());
  }
  std::uint64_t bytes = 0;
  if (is_huge || !scale(number, *unit, bytes)) {
    return Error::make(Code::kInvalidArgument, "%s: %s is too large, expected less than 2^63 bytes",
                       name, shown.c_str());
  }
  return bytes;
}

}  // namespace cachalot::base
