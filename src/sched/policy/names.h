// What a policy's flags call its values: one table for each kind of value.
#pragma once

#include <cachalot/result.h>

#include <algorithm>
#include <string>
#include <string_view>

namespace cachalot::sched {

template <class Value>
struct Name {
  Value value;
  const char* text;
};

template <class Value, std::size_t kNames>
std::string list_names(const Name<Value> (&names)[kNames], const char* separator = ", ") {
  std::string list;
  for (const Name<Value>& name : names)
    list += (list.empty() ? "" : separator) + std::string(name.text);
  return list;
}

// @param what  begins the message
// @errors kInvalidArgument: no such name; the message lists those there are
template <class Value, std::size_t kNames>
Result<Value> parse_name(const char* what, const Name<Value> (&names)[kNames],
                         std::string_view text) {
  for (const Name<Value>& name : names) {
    if (text == name.text) return name.value;
  }
  const std::string shown(text.substr(0, 60));
  return Error::make(Code::kInvalidArgument, "%s \"%s\", expected one of: %s", what, shown.c_str(),
                     list_names(names).c_str());
}

}  // namespace cachalot::sched
