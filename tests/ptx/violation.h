// For tests: what is wrong with a kernel, or with its text. An exception: it ends the launch wherever
// it is found.
#pragma once

#include <cstdarg>
#include <cstdio>
#include <stdexcept>
#include <string>

namespace cachalot::ptx {

enum class Wrong {
  kText,   // not PTX that this machine knows
  kRule,   // something that a GPU does not promise, or forbids
  kFault,  // global memory that the device does not reach
};

class Violation : public std::runtime_error {
 public:
  Violation(Wrong wrong, const std::string& what) : std::runtime_error(what), kind(wrong) {}
  Wrong kind;
};

[[noreturn]] [[gnu::format(printf, 2, 3)]] inline void fail(Wrong kind, const char* format, ...) {
  char text[512];
  std::va_list arguments;
  va_start(arguments, format);
  std::vsnprintf(text, sizeof text, format, arguments);
  va_end(arguments);
  throw Violation(kind, text);
}

}  // namespace cachalot::ptx
