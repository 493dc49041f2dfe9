// Where a storage or a registry is, as text: "redis://user:secret@10.0.0.7:6379/kv?cluster=1", "file:/ssd/kv?sync=1".
//
//   SCHEME ":" PLACE [ "?" NAME "=" VALUE { "&" NAME "=" VALUE } ]
//
// "%xx" stands for a byte, in names, values and the parts of a place. Messages show a text without its password.
//
// @threads any
#pragma once

#include <cachalot/result.h>

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace cachalot::base {

// Replaces "%xx". @errors kInvalidArgument: no two hexadecimal digits after a "%", or a zero byte
Result<std::string> decode_percent(std::string_view text);
// "%xx" for all but letters, digits, "-", ".", "_", "~", and "/" if it is kept.
std::string encode_percent(std::string_view text, bool keeps_slash);

struct Uri {
  std::string subject;  // what it is the place of: "storage". Messages begin with it
  std::string scheme;
  std::string place;  // what is between the ":" and the "?", not decoded
  std::vector<std::pair<std::string, std::string>> parameters;
  std::string shown;  // the whole text without its password, at most 120 characters: for messages

  // @errors kInvalidArgument: no scheme, a parameter without "=", or one that is given twice
  static Result<Uri> parse(std::string_view subject, std::string_view text);

  // The value of a parameter, or null.
  const std::string* find(std::string_view name) const;
  // @param known  names of parameters, with spaces between; "*": any
  // @errors kInvalidArgument: it has another one
  Status check_parameters(std::string_view known) const;
  // A parameter that is 0 or 1. @errors kInvalidArgument: another value
  Result<bool> flag(std::string_view name, bool otherwise) const;
  // A whole number. @errors kInvalidArgument: no number, or out of range
  Result<std::uint64_t> number(std::string_view name, std::uint64_t otherwise, std::uint64_t least,
                               std::uint64_t most) const;
  // The place as a path. @errors kInvalidArgument: it is empty
  Result<std::string> path() const;
};

}  // namespace cachalot::base
