#include "base/c_boundary.h"

#include <cstdio>

namespace cachalot::base {
namespace {

thread_local char last_message[Error::kMessageBytes] = "";

}  // namespace

cachalot_code fail(const Error& error) {
  std::snprintf(last_message, sizeof last_message, "%s", error.message);
  return static_cast<cachalot_code>(error.code);
}

const char* last_failure() {
  return last_message;
}

}  // namespace cachalot::base
