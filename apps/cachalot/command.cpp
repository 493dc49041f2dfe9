#include "command.h"

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <nlohmann/json.hpp>
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

Error write_error(const std::string& file) {
  Error error = Error::from_errno(errno, "%.150s: writing", file.c_str());
  // A folder that does not exist is a slip of the pen, not an answer.
  if (error.code == Code::kNotFound) error.code = Code::kInvalidArgument;
  return error;
}

}  // namespace

int exit_code(Code code) {
  switch (code) {
    case Code::kInvalidArgument:
    case Code::kBadInput:
    case Code::kNotAPool:
    case Code::kVersionMismatch:
      return kExitUsage;
    case Code::kNotFound:
    case Code::kCorrupt:
    case Code::kStale:
    case Code::kRefused:
    case Code::kInternal:
      return kExitFault;
    case Code::kNoKeeper:
    case Code::kNoSpace:
    case Code::kPermission:
    case Code::kBusy:
    case Code::kTimeout:
    case Code::kUnsupported:
    case Code::kIo:
      return kExitRefused;
  }
  return kExitFault;
}

int fail(const Error& error) {
  // One line, whatever a path or a library's text contains.
  std::string line = error.message;
  std::replace_if(
      line.begin(), line.end(), [](char c) { return static_cast<unsigned char>(c) < ' '; }, ' ');
  std::fprintf(stderr, "cachalot: %s\n", line.c_str());
  // A file that was named and is not there is a matter of usage; a key that is absent is not.
  const bool is_path = error.code == Code::kNotFound && error.os_error != 0;
  return is_path ? kExitUsage : exit_code(error.code);
}

Status write_json(const std::string& file, const nlohmann::json& value) {
  if (file.empty()) return {};
  // Bytes that are no UTF-8 (a path may have any) become a replacement character.
  return write_text(file,
                    value.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace) + "\n");
}

Status write_text(const std::string& file, const std::string& text) {
  std::FILE* const out = file == "-" ? stdout : std::fopen(file.c_str(), "we");
  if (out == nullptr) return write_error(file);
  const bool is_written =
      std::fwrite(text.data(), 1, text.size(), out) == text.size() && std::fflush(out) == 0;
  if (!is_written) {
    const Error error = write_error(file);
    if (out != stdout) std::fclose(out);
    return error;
  }
  if (out != stdout && std::fclose(out) != 0) return write_error(file);
  return {};
}

std::FILE* human_output(const std::string& json_file) {
  return json_file == "-" ? stderr : stdout;
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
  std::uint64_t bytes = 0;
  if (is_huge || !scale(number, *unit, bytes)) {
    return Error::make(Code::kInvalidArgument,
                       "%s: %.80s is too large, expected less than 2^63 bytes", flag.c_str(),
                       text.c_str());
  }
  return bytes;
}

Result<std::uint64_t> parse_blocks(const std::string& flag, const std::string& text) {
  if (text == "inf") return ~std::uint64_t{0};
  std::string_view rest = text;
  Decimal number;
  const bool is_number = take_decimal(rest, number);
  if (!is_number || !rest.empty() || text.find('.') != std::string::npos) {
    return Error::make(Code::kInvalidArgument,
                       "%s: \"%.80s\" is no number of blocks, expected one below 2^64, or inf",
                       flag.c_str(), text.c_str());
  }
  return number.digits;
}

}  // namespace cachalot::apps
