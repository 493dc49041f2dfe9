#include "trace/allocation/pickle_literals.h"

#include <algorithm>
#include <bit>
#include <charconv>
#include <string_view>

namespace cachalot::trace {
namespace {

PickleValue of_kind(PickleKind kind) {
  PickleValue value;
  value.kind = kind;
  return value;
}

// A pickle has fewer than 2^32 bytes, so the length fits.
PickleValue text_of(PickleKind kind, std::string_view text) {
  PickleValue value = of_kind(kind);
  value.text_bytes = static_cast<std::uint32_t>(text.size());
  value.text = text.data();
  return value;
}

PickleValue float_of(double real) {
  PickleValue value = of_kind(PickleKind::kFloat);
  value.real = real;
  return value;
}

PickleValue large_integer(std::uint64_t number) {
  PickleValue value = of_kind(PickleKind::kLargeInteger);
  value.large = number;
  return value;
}

// Whether the number fits; it is read as far as it does.
template <class Number>
Result<bool> read_decimal(std::string_view line, Number& number) {
  const char* const end = line.data() + line.size();
  const auto [stop, problem] = std::from_chars(line.data(), end, number);
  if (stop == end && problem != std::errc::invalid_argument) return problem == std::errc();
  return Error::make(Code::kBadInput, "a line that is no number, expected a decimal one");
}

}  // namespace

PickleValue pickle_none() {
  return of_kind(PickleKind::kNone);
}

PickleValue pickle_bool(bool value) {
  PickleValue result = of_kind(PickleKind::kBool);
  result.integer = value ? 1 : 0;
  return result;
}

PickleValue pickle_integer(std::int64_t integer) {
  PickleValue value = of_kind(PickleKind::kInteger);
  value.integer = integer;
  return value;
}

Result<PickleValue> take_integer(PickleBytes& bytes, std::size_t width) {
  CACHALOT_TRY_ASSIGN(const std::uint64_t number, bytes.take_unsigned(width));
  return pickle_integer(static_cast<std::int64_t>(number));
}

Result<PickleValue> take_signed_integer(PickleBytes& bytes) {
  CACHALOT_TRY_ASSIGN(const std::uint64_t number, bytes.take_unsigned(4));
  return pickle_integer(static_cast<std::int32_t>(static_cast<std::uint32_t>(number)));
}

Result<PickleValue> take_decimal(PickleBytes& bytes) {
  CACHALOT_TRY_ASSIGN(std::string_view line, bytes.take_line());
  if (line == "00" || line == "01") return pickle_bool(line == "01");
  if (line.ends_with('L')) line.remove_suffix(1);
  std::int64_t number = 0;
  CACHALOT_TRY_ASSIGN(const bool fits, read_decimal(line, number));
  if (fits) return pickle_integer(number);
  std::uint64_t large = 0;
  if (line.starts_with('-')) return of_kind(PickleKind::kLongInteger);
  CACHALOT_TRY_ASSIGN(const bool fits_without_sign, read_decimal(line, large));
  return fits_without_sign ? large_integer(large) : of_kind(PickleKind::kLongInteger);
}

Result<PickleValue> take_long(PickleBytes& bytes, std::size_t length_width) {
  CACHALOT_TRY_ASSIGN(const std::uint64_t length, bytes.take_unsigned(length_width));
  CACHALOT_TRY_ASSIGN(const std::string_view digits, bytes.take(length));
  // A ninth byte of 0 says that the number has no sign.
  const bool is_large = digits.size() == 9 && digits[8] == 0 && (digits[7] & 0x80) != 0;
  if (digits.size() > 8 && !is_large) return of_kind(PickleKind::kLongInteger);
  const bool is_negative = !digits.empty() && (digits.back() & 0x80) != 0;
  std::uint64_t number = is_negative ? ~std::uint64_t{0} : 0;
  for (std::size_t i = std::min<std::size_t>(digits.size(), 8); i-- > 0;) {
    number = number << 8 | static_cast<unsigned char>(digits[i]);
  }
  if (is_large) return large_integer(number);
  return pickle_integer(static_cast<std::int64_t>(number));
}

Result<PickleValue> take_decimal_float(PickleBytes& bytes) {
  CACHALOT_TRY_ASSIGN(const std::string_view line, bytes.take_line());
  double real = 0;
  CACHALOT_TRY(read_decimal(line, real));
  return float_of(real);
}

Result<PickleValue> take_float(PickleBytes& bytes) {
  CACHALOT_TRY_ASSIGN(const std::uint64_t bits, bytes.take_unsigned(8));
  return float_of(std::bit_cast<double>(__builtin_bswap64(bits)));
}

Result<PickleValue> take_text(PickleBytes& bytes, PickleKind kind, std::size_t length_width) {
  CACHALOT_TRY_ASSIGN(const std::uint64_t length, bytes.take_unsigned(length_width));
  CACHALOT_TRY_ASSIGN(const std::string_view text, bytes.take(length));
  return text_of(kind, text);
}

Result<PickleValue> take_text_line(PickleBytes& bytes, bool has_quotes) {
  CACHALOT_TRY_ASSIGN(std::string_view line, bytes.take_line());
  if (has_quotes && line.size() >= 2) line = line.substr(1, line.size() - 2);
  return text_of(PickleKind::kText, line);
}

Result<std::uint64_t> take_place_line(PickleBytes& bytes) {
  CACHALOT_TRY_ASSIGN(const std::string_view line, bytes.take_line());
  std::uint64_t place = ~std::uint64_t{0};
  CACHALOT_TRY(read_decimal(line, place));
  return place;
}

}  // namespace cachalot::trace
